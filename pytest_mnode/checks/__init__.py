"""Checks of process groups, samplers and metrics, also for users' own tests."""
