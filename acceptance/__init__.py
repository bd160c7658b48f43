"""The acceptance suite: one question a file, one case of it a test."""
