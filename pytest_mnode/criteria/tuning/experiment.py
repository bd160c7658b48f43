"""What an experiment is: its settings, what is measured under each, and what that found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_mnode.culprit import Culprit
from pytest_mnode.spec import Spec

Values = Mapping[str, Mapping[str, float]]
"""Values by case, such as "64 KiB" ("" if there is only one), and by name of the metric."""


class NotHere(Exception):
    """Why this cluster cannot do an experiment, or have a setting: no fault of it."""


class Broken(Exception):
    """What no setting excuses, such as a wrong sum; its one argument is the culprit."""

    @property
    def culprit(self) -> Culprit:
        return Culprit.of(self.args[0])


def longer(nodes: int) -> float:
    """[choice] By what factor limits grow with the nodes: twice as long on 64."""
    return 1 + nodes / 64


@dataclass(frozen=True, slots=True)
class Metric:
    """A measured quantity. more: whether more is better. at_most_worse: share by which a setting
    may be worse and still be advised; None if that does not matter."""

    name: str
    unit: str
    more: bool = False
    at_most_worse: float | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """One of the settings that are compared.

    arguments: of the function in ranks. env: of ranks that are started for it. nodes: their order
    as ranks are numbered; () as it is. lines: what to put into nccl.conf, the job or the node's
    configuration to have it.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    @classmethod
    def of_env(cls, **env: str) -> Setting:
        """A setting of the libraries' variables, which nccl.conf takes as they are."""
        lines = tuple(f"{name}={value}" for name, value in env.items())
        return cls(" ".join(lines), env=env, lines=lines)


@dataclass(frozen=True, slots=True)
class Place:
    """Where experiments run. in_ranks: calls a function of `in_ranks` by name, in all ranks."""

    spec: Spec
    nodes: tuple[str, ...]
    ranks_per_node: int
    backend: str
    in_ranks: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A question that settings answer.

    function: of `in_ranks`, which returns `Values`, the same on all ranks. metrics: the first
    decides. settings: those to compare, the first is what others are compared with; raises NotHere.
    takes_s: [choice] seconds of one measurement. crosses: names of two settings, of which the
    second is faster for small sizes.
    """

    name: str
    question: str
    function: str
    metrics: tuple[Metric, ...]
    settings: Callable[[Place], Sequence[Setting]]
    takes_s: float
    crosses: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What an experiment measured. values: by setting one `Values` for each round, in their order;
    dropped: settings that this place cannot have, and why; failed: those under which ranks failed
    or hung, so that nobody knows what they gain."""

    experiment: Experiment
    settings: tuple[Setting, ...]
    values: Mapping[str, Sequence[Values]]
    dropped: Mapping[str, str]
    took_s: float
    failed: Mapping[str, str] = field(default_factory=dict)
