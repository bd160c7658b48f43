"""What is said of files that ranks import for themselves."""

from __future__ import annotations

from tests.controller.desk import Desk


def test_each_file_is_announced_once() -> None:
    worlds = Desk().worlds
    worlds.import_in_ranks({"/r/b.py": "it forks", "/r/a.py": "it forks"}, "/r")
    worlds.import_in_ranks({"/r/b.py": "it forks", "/r/c.py": "it has threads"}, "/r")
    assert worlds.notices == ["a.py; b.py: it forks", "c.py: it has threads"]
