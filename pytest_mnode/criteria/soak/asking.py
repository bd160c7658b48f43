"""A soak as the run asks for it: its time, the rounds of an earlier run, and what is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_mnode.criteria.soak import found, judging
from pytest_mnode.criteria.soak.found import Kept
from pytest_mnode.criteria.soak.running import Soak
from pytest_mnode.evidence import file
from pytest_mnode.measuring.rank_rates import FALSE_ALARM
from pytest_mnode.options import RUN, read_settings
from pytest_mnode.spec.quantity import DURATION

if TYPE_CHECKING:
    import pytest

    from pytest_mnode.charts import Chart
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.measurement import Measurement
    from pytest_mnode.spec import Spec


def asked_s(config: pytest.Config, spec: Spec) -> float | None:
    """How long to soak: as the option says, else as promised; None if neither asks for it."""
    given: float | None = read_settings(config).soak_s
    promise = spec.criteria.soak
    return given if given is not None or promise is None else promise.for_s


def soak(config: pytest.Config, cluster: Cluster, spec: Spec, for_s: float) -> Soak:
    """The soak, which goes on where that of an earlier run with this report was cut."""
    console: Any = config.stash[RUN].console
    rows, why = config.stash.get(file.EARLIER, ([], ""))
    kept = found.kept_in(rows)
    if kept.rounds:
        why = _other(kept, cluster.nodes, for_s)
    if why or not kept.rounds:
        kept = Kept()
        file.record_rows(config, found.KEY, [found.began()])
    file.record_rows(config, found.KEY, [found.asked(for_s)])
    note = f"begins anew: {why}" if why else ""
    if kept.rounds:
        soaked = DURATION.text(round(kept.soaked_s))
        note = f"goes on after {len(kept.rounds)} rounds of earlier runs, {soaked}"
    if note:
        console.show([f"mnode: soak {note}"])
    return Soak(
        cluster,
        spec,
        read_settings(config),
        for_s,
        kept,
        keep=lambda some: file.record_rows(config, found.KEY, some),
        show=lambda line: console.show([line]) if config.getoption("verbose") > 0 else None,
        note=note,
    )


def _other(kept: Kept, nodes: tuple[str, ...], for_s: float) -> str:
    """Why rounds of an earlier run are of another soak; "" if they are of this one."""
    if kept.ended_s is not None and for_s <= kept.ended_s:
        return f"that of this report lasted as long as it should, {DURATION.text(kept.ended_s)}"
    others = set(kept.rounds[-1].nodes) ^ set(nodes)
    return f"that of this report had other nodes ({', '.join(sorted(others)[:4])})" * bool(others)


def judged(done: Soak) -> list[Measurement]:
    """What a soak has found so far."""
    spec = done.spec
    devices = spec.criteria.devices
    products = len(devices.matmul.dtypes) if devices and devices.matmul else 0
    alarm = FALSE_ALARM * products / devices.comparisons if devices and products else None
    return [
        *judging.judge(
            done.rounds,
            spec.criteria.soak,
            for_s=done.for_s,
            cut=done.cut,
            note=done.note,
            shared=spec.shares_processors,
            false_alarm=alarm,
        ),
        *done.over_all(),
    ]


def charts(done: Soak) -> list[Chart]:
    return judging.charts(done.rounds)
