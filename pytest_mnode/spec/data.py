"""What is promised of how data reaches ranks."""

from __future__ import annotations

from pytest_mnode.spec.fields import Page


class DataCriterion(Page):
    """Shards are disjoint and complete, batches and metrics count right, seeds differ."""
