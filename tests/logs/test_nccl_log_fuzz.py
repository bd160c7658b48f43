"""The reader of NCCL logs accepts any input, and ignores how a log was collected."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_mnode.logs.nccl_log.model import Channel, NcclLog
from pytest_mnode.logs.nccl_log.read import read_nccl_log

LOGS = {
    path.name: path.read_text()
    for path in sorted((Path(__file__).parents[2] / "fixtures" / "logs").glob("*.log"))
}
ENDED = {name: text for name, text in LOGS.items() if text.endswith("\n")}
EVERYTHING = "".join(ENDED.values())
LINES = EVERYTHING.splitlines()

some = settings(max_examples=60, deadline=None)

PREFIXES = [
    *("3: ", " 11: ", "[rank3]: ", "[default0]:", "[1,3]<stdout>:", "[1,3]<stderr>: "),
    *("[pod/nccl-launcher-x7z2p/worker] ", "nccl-worker-0  | "),
    *("(RayWorkerWrapper pid=7712, ip=10.0.0.7) ", "(WorkerProc pid=212) "),
    *("2026-11-21T08:11:12.123456Z ", "2026-11-21T08:11:12.123456789Z stdout F "),
    *("2026-11-21T08:11:12+01:00", "2026-11-21 08:11:12,345 ", "[2026-11-21 08:11:12] "),
    *("08:11:12 ", "08:11:12.345 ", "1763712672.123456 "),
    *("Nov 21 08:11:12 alder3 slurmstepd[4242]: ", "\x1b[36mworker-1 |\x1b[0m "),
    *("7: [rank7]: [2026-11-21 08:11:12] ", "[0]<stdout>: ", "(task, pid=4242) \x1b[32m"),
    *("worker-0: ", "INFO:root:"),
]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefixes_of_lines_have_no_effect(prefix: str) -> None:
    """Each prefix with a third of the logs."""
    for text in [*LOGS.values()][PREFIXES.index(prefix) % 3 :: 3]:
        lines = text.split("\n")
        ended = [prefix + line for line in lines[:-1]]
        last = [prefix + lines[-1]] if lines[-1] else [""]
        assert read_nccl_log("\n".join(ended + last)) == read_nccl_log(text)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: text.replace("\n", "\r\n"), id="carriage returns"),
        pytest.param(lambda text: text.replace("NCCL", "\x1b[1;31mNCCL\x1b[0m"), id="colours"),
        pytest.param(lambda text: text.encode(), id="UTF-8"),
        pytest.param(lambda text: text.encode("utf-8-sig"), id="UTF-8 with a mark"),
        pytest.param(lambda text: text.encode("utf-16"), id="UTF-16 with a mark"),
        pytest.param(lambda text: text.replace("\n", "\nepoch 3: loss 0.71, 12%\n"), id="others"),
        pytest.param(lambda text: text.replace("\n", "\n\udc80\ufffd\x85\u2028 é\n"), id="noise"),
        pytest.param(lambda text: text + text, id="all twice"),
        pytest.param(lambda text: re.sub(r"(?m)^(.+)$", r"\1\n\1", text), id="each line twice"),
        pytest.param(lambda text: re.sub(r"(?m)^(.+)$", r"\1\n3: \1", text), id="and prefixed"),
        pytest.param(
            lambda text: re.sub(
                r"(?m)^(.+)$",
                lambda line: json.dumps({"log": line.group() + "\n", "stream": "stdout"}),
                text,
            ),
            id="records of a container",
        ),
    ],
)
def test_the_storage_format_of_a_log_has_no_effect(change: Callable[[str], str | bytes]) -> None:
    for text in ENDED.values():
        assert read_nccl_log(change(text)) == read_nccl_log(text)


def core(channel: Channel) -> tuple[object, ...]:
    return (
        channel.process,
        channel.number,
        channel.connection,
        channel.sender,
        channel.receiver,
        channel.direction,
        channel.transport,
        channel.network,
    )


def adds_nothing(cut: NcclLog, whole: NcclLog) -> None:
    """Whether a part of a log contains no facts that the whole log lacks."""
    known: dict[tuple[object, ...], list[Channel]] = {}
    for channel in whole.channels:
        known.setdefault(core(channel), []).append(channel)
    for channel in cut.channels:
        assert any(
            channel.device in (None, full.device) and channel.gdr in (None, full.gdr)
            for full in known.get(core(channel), [])
        ), channel
    assert {rank.process for rank in cut.ranks} <= {rank.process for rank in whole.ranks}
    assert set(cut.networks) <= set(whole.networks)
    assert set(cut.settings) <= set(whole.settings)
    assert set(cut.no_device) <= set(whole.no_device)
    assert set(cut.providers) <= set(whole.providers)
    adapters = {name for device in whole.devices for name in device.members}
    assert {name for device in cut.devices for name in device.members} <= adapters


@pytest.mark.parametrize("name", ENDED)
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_a_log_that_ends_anywhere_adds_nothing(name: str, data: st.DataObject) -> None:
    text = ENDED[name]
    end = data.draw(st.integers(0, len(text)))
    adds_nothing(read_nccl_log(text[:end]), read_nccl_log(text))


@pytest.mark.parametrize("name", ENDED)
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_a_log_that_begins_anywhere_adds_nothing(name: str, data: st.DataObject) -> None:
    text = ENDED[name]
    begin = data.draw(st.integers(0, len(text) - 1))
    # The end of a host name is certain only if the whole name appears further below.
    host = text[text.rfind("\n", 0, begin) + 1 :].partition(":")[0]
    assume(f"\n{host}:" in text[begin:])
    adds_nothing(read_nccl_log(text[begin:]), read_nccl_log(text))


@some
@given(st.text(max_size=400) | st.binary(max_size=400))
def test_any_text_is_read(anything: str | bytes) -> None:
    assert isinstance(read_nccl_log(anything), NcclLog)


PIECES = st.sampled_from(
    [
        *("NCCL INFO ", "NCCL WARN ", "h1:1:2 [0] ", "Channel 00/0 : ", "0[0] -> 1[0] ", "[send] "),
        *("via ", "NET/IB/0", "/GDRDMA", "NET/IB : Using ", "[0]={[0] a:1/IB, ", "}"),
        *("[1]mlx5_0:9999/", "; OOB ", "comm 0x1 rank 0 nranks 2 cudaDev 0 ", "- Init START"),
        *("- Init COMPLETE", "GID 3 (FFFFFFFFFFFFFFFF/0) ", "99999999999999999999", "\n", "\r"),
        *("\0", '{"log": "NCCL', "Trees [0] 1/", "٣"),
    ]
)


@some
@given(st.lists(PIECES | st.text(max_size=3), max_size=40))
def test_any_combination_of_log_pieces_is_read(pieces: list[str]) -> None:
    text = "".join(pieces)
    log = read_nccl_log(text)
    assert len(log.channels) <= text.count("via ")
    for rank in log.ranks:
        assert set(rank.channels) <= set(log.channels)
        assert all(log.kind_of(channel) for channel in rank.net_channels)
    assert len(log.adapters(log.channels)[0]) <= sum(len(d.members) for d in log.devices)


@some
@given(
    line=st.sampled_from(LINES),
    at=st.integers(0, 200),
    drop=st.integers(0, 4),
    add=st.text(max_size=4),
)
def test_a_damaged_line_is_read(line: str, at: int, drop: int, add: str) -> None:
    damaged = line[:at] + add + line[at + drop :]
    log = read_nccl_log(damaged + "\n")
    found_lines = len(log.channels) + len(log.unknown_lines)
    assert found_lines <= damaged.count("via") + damaged.count("Channel") + damaged.count("Coll")
