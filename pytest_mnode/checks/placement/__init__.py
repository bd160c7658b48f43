"""The checks of placement: one file for each. Only what they measure imports torch."""
