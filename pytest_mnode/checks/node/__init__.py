"""Checks of nodes: one file for each subject, and one class for each question."""
