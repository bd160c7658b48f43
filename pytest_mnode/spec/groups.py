"""What is promised of process groups over several dimensions."""

from __future__ import annotations

from pytest_mnode.spec.fields import Page


class GroupsCriterion(Page):
    """Data, tensor and pipeline parallel groups have the right ranks and sum right."""
