"""Display of a failure of several ranks: pytest's own tracebacks, each headed by its ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

_MOST_NAMED = 20
"""Most tests whose ranks are named beside the summary."""
_KEY = "mnode_ranks"
"""Key of the parts in a serialised report."""


@dataclass(frozen=True, slots=True)
class Part:
    """Part for some ranks: a pytest report with its traceback, or a text."""

    title: str
    report: pytest.TestReport | None
    text: str


@dataclass(frozen=True, slots=True)
class Crash:
    """Fields of a longrepr that pytest's summary line and junit use."""

    path: str
    lineno: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.lineno}: {self.message}" if self.path else self.message


class RanksRepr:
    """A pytest longrepr made of parts, the culprit's first."""

    def __init__(self, parts: tuple[Part, ...], message: str, path: str, lineno: int) -> None:
        self.parts = parts
        self.reprcrash = Crash(path, lineno, message)

    def toterminal(self, tw: Any) -> None:
        for number, part in enumerate(self.parts):
            if number:
                tw.line("")
            tw.line(f"[{part.title}]", bold=True, red=number == 0)
            if part.report is not None:
                longrepr: Any = part.report.longrepr
                if hasattr(longrepr, "toterminal"):
                    longrepr.toterminal(tw)
                else:
                    tw.line(str(longrepr))
            elif part.text:
                tw.line(part.text)

    def __str__(self) -> str:
        blocks = []
        for part in self.parts:
            text = part.text if part.report is None else part.report.longreprtext
            blocks.append(f"[{part.title}]\n{text}".rstrip())
        return "\n\n".join(blocks)

    def to_dict(self, serialize: Callable[[pytest.TestReport], Any]) -> dict[str, Any]:
        return {
            "parts": [
                [p.title, None if p.report is None else serialize(p.report), p.text]
                for p in self.parts
            ],
            "crash": [self.reprcrash.message, self.reprcrash.path, self.reprcrash.lineno],
        }

    @classmethod
    def from_dict(
        cls, data: dict[str, Any], deserialize: Callable[[Any], pytest.TestReport]
    ) -> RanksRepr:
        parts = tuple(
            Part(title, None if report is None else deserialize(report), text)
            for title, report, text in data["parts"]
        )
        return cls(parts, *data["crash"])


def culprits_cut_off(reports: Iterable[Any], width: int) -> list[str]:
    """Lines for tests whose line in pytest's summary is too short, at this width, for the ranks."""
    lines = []
    for report in reports:
        longrepr = getattr(report, "longrepr", None)
        if not isinstance(longrepr, RanksRepr):
            continue
        ranks = longrepr.parts[0].title.removesuffix(": first")
        if len(f"FAILED {report.nodeid} - {ranks}") > width:
            name = report.nodeid.rpartition("::")[2]
            lines.append(f"{longrepr.reprcrash.message.partition(chr(10))[0]} ({name})")
    return lines


class RanksReprHooks:
    """pytest plugin: passes reports of many ranks between pytest-xdist's processes, and names ranks
    that the summary has no room for."""

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        if config.get_verbosity() >= 2:  # then pytest cuts nothing off
            return
        failed = (r for kind in ("failed", "error") for r in terminalreporter.getreports(kind))
        width = terminalreporter._tw.fullwidth
        for line in culprits_cut_off(failed, width)[:_MOST_NAMED]:
            terminalreporter.write_line(f"mnode: {line}"[:width], red=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_to_serializable(
        self, config: pytest.Config, report: pytest.CollectReport | pytest.TestReport
    ) -> dict[str, Any] | None:
        longrepr: Any = getattr(report, "longrepr", None)
        if not isinstance(longrepr, RanksRepr):
            return None
        plain = copy.copy(report)
        plain.longrepr = str(longrepr)
        hook = config.hook.pytest_report_to_serializable
        data: dict[str, Any] = hook(config=config, report=plain)
        data[_KEY] = longrepr.to_dict(lambda r: hook(config=config, report=r))
        return data

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_from_serializable(
        self, config: pytest.Config, data: dict[str, Any]
    ) -> pytest.CollectReport | pytest.TestReport | None:
        if _KEY not in data:
            return None
        data = dict(data)
        parts = data.pop(_KEY)
        hook = config.hook.pytest_report_from_serializable
        report: Any = hook(config=config, data=data)
        report.longrepr = RanksRepr.from_dict(parts, lambda d: hook(config=config, data=d))
        return report  # type: ignore[no-any-return]
