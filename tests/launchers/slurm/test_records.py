"""Reservations in the output of `scontrol --oneliner show reservation`."""

from __future__ import annotations

import pytest

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.slurm.records import number, records, reserved_nodes

TEXT = (
    "ReservationName=cert StartTime=1 EndTime=2 Duration=01:00:00 Nodes=n[2-3] NodeCnt=2 "
    "CoreCnt=256 Features=(null) PartitionName=gpu Flags=SPEC_NODES TRES=cpu=256 Users=ada "
    "State=ACTIVE BurstBuffer=(null)\n"
    "ReservationName=later Nodes=n[0-1] State=INACTIVE\n"
    "ReservationName=licence Nodes=(null) State=ACTIVE\n"
)


def test_nodes_of_a_reservation() -> None:
    assert reserved_nodes(TEXT, "cert") == ("n2", "n3")


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (TEXT, "x", "Slurm has no reservation x; there are: cert, later, licence"),
        ("No reservations in the system\n", "x", "Slurm has no reservation x; there are: none"),
        (TEXT, "later", "reservation later is INACTIVE: no job starts in it"),
        (TEXT, "licence", "reservation licence has no nodes"),
    ],
)
def test_unusable_reservations_have_a_reason(text: str, name: str, message: str) -> None:
    with pytest.raises(ClusterError) as error:
        reserved_nodes(text, name)
    assert str(error.value) == message


def test_a_record_may_have_several_lines_and_others_are_skipped() -> None:
    text = (
        "   cut off\nslurm_load: a warning\n"
        "NodeName=n0 CPUTot=4 CPUTot=9\n   State=IDLE\na warning\n"
        "\nNodeName=n1 State=DOWN\n\tReason=disk\n"
    )
    assert [*records(text, "NodeName")] == [
        {"NodeName": "n0", "CPUTot": "4", "State": "IDLE"},
        {"NodeName": "n1", "State": "DOWN", "Reason": "disk"},
    ]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("6-6", 6),
        ("N/A", None),
    ],
)
def test_numbers(value: str | None, found: int | None) -> None:
    assert number(value) == found
