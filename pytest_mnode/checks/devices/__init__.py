"""The checks of devices: one file for each subject. Only what they measure imports torch."""
