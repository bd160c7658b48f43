"""The acceptance suite: one question per file, one case of the question per test."""
