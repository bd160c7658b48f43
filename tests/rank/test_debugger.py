"""What has a rank expect its user's debugger."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from pytest_mnode.rank import debugger


@pytest.mark.parametrize(
    ("given", "rank", "asked"),
    [
        ({}, None, False),
        ({"usepdb": True}, None, True),
        ({"trace": True}, None, True),
        ({}, 0, True),
    ],
)
def test_a_debugger_that_an_option_asks_for(
    given: dict[str, bool], rank: int | None, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debugger, "setting", lambda _, name: {"debug_rank": rank}[name])
    config: Any = Mock(getoption=given.get)
    assert debugger.is_asked_for(config) is asked
