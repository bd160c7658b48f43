"""PYTEST_DONT_REWRITE this file, which is imported before pytest can."""
