"""What is promised of starting a job."""

from __future__ import annotations

from pytest_mnode.spec.fields import Page


class LaunchCriterion(Page):
    """A job as a user describes it starts on every node with the right environment."""
