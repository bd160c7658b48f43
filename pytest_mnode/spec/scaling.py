"""What is promised of a training job over more and more nodes."""

from __future__ import annotations

from pytest_mnode.spec.fields import Page


class ScalingCriterion(Page):
    """A training job over n nodes does n times the work of one; what is lost is named."""
