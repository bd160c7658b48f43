"""Lines of ranks are passed on whole and in order."""

from __future__ import annotations

from pathlib import Path

from pytest_mnode.agent.live_output import LiveFiles
from pytest_mnode.protocol.messages import Shape, WorldInfo
from pytest_mnode.protocol.rank_files import RankFiles


def test_only_whole_lines_are_passed_on(tmp_path: Path) -> None:
    world = WorldInfo("w1", Shape(1, 2), ("node0",), log_dir=str(tmp_path))
    files = LiveFiles(world)
    path = RankFiles(world, 1).live
    path.parent.mkdir()
    files.follow(0)  # it has no file
    assert not files
    path.touch()
    files.follow(1)
    assert files
    assert files.news() is None
    with path.open("ab", buffering=0) as file:

        def news(data: bytes, dead: int | None = None) -> list[str]:
            file.write(data)
            found = files.news(dead)
            return found.lines[1] if found else []

        assert news(b"one\ntw") == ["one"]
        assert news(b"o") == []
        assert news(b"\n\nthree") == ["two", ""]
        assert news(b"\r 5%\r10%\r\n") == ["10%"]
        assert news(b"\xc3") == []
        assert news(b"\xa9\n") == ["é"]
        assert news(b"x" * 70_000) == ["x" * 70_000]  # its reader no longer waits for the end
        assert news(b"last", dead=0) == []
        assert news(b" words", dead=1) == ["last words"]
