"""What findings are called, and what is wrong by them."""

from __future__ import annotations

from pytest_mnode.criteria.restart.findings import Finding
from pytest_mnode.gang.conduct import Report
from pytest_mnode.wrong import Wrong

FAIL, UNKNOWN = "fail", "inconclusive"
PARTS = "longest time that a gang held a part of its nodes"
WAITING = "ranks of waiting gangs that ran"
AFTER = "ranks that ran on after their gang"
ELSEWHERE = "ranks on nodes that their gang did not hold"
ALONE = "longest time that ranks of a gang ran without all others"
NEVER = "gangs that never ran, though there was room"
NEXT = "longest time from room for a gang to its start"
NOT_TRIED = "rounds in which no gang had to wait"
LEFT = "jobs left in the queue"
NOT_BACK = "nodes not given back"
TWICE = "nodes held by two jobs at once"
UNTOLD = "gangs larger than the cluster without a refusal or a reason"
BLOCKED = "jobs that a gang larger than the cluster keeps from running"
FATE = "gangs neither requeued nor cancelled whole when a node had died"
OFF = "time from the death of a node until its gang is off all nodes"
OLD = "ranks of the start that lost a node that ran on"
AGAIN = "time from there until it runs again, whole"
OTHERS = "longest time to the start of others beside it"
UNHEARD = "gangs of which not all ranks ran at once, and to their end"
CONDUCTED = "experiments that could not be conducted"


def verdict(finding: Finding) -> str | None:
    if isinstance(finding, Wrong):
        return UNKNOWN if finding.count is None else FAIL if finding.count else None
    if finding.at_most is None:
        return None
    if finding.value is None:
        return UNKNOWN
    return FAIL if finding.value > finding.at_most else None


def verdicts(report: Report) -> dict[str, str]:
    return {f.name: found for f in report.findings if (found := verdict(f)) is not None}


def culprit(report: Report, name: str) -> str:
    return next(f.culprit or f.note for f in report.findings if f.name == name)


def words(report: Report, name: str) -> str:
    return next(f"{f.culprit or ''}; {f.note}" for f in report.findings if f.name == name)
