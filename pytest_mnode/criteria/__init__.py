"""Judgements, one folder per criterion: facts and spec to measurements."""
