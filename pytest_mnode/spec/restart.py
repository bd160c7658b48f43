"""What is promised of a training job that is killed and resumed."""

from __future__ import annotations

from pytest_mnode.spec.fields import Page


class RestartCriterion(Page):
    """A killed job comes back without hands and loses nothing after its last checkpoint."""
