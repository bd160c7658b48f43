"""Judges, one folder per criterion: functions of facts and spec that return measurements."""
