"""Hypothesis tests in ranks: all ranks try the same examples, and agree on the outcome of each.

Each rank runs hypothesis' own engine, all with one seed. An engine's next step depends on the
outcomes of earlier examples, so ranks vote on each outcome, and an example that fails in one rank
fails in all. Only ranks in which it really failed report the error and the example.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import random
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, reject, settings
from hypothesis.control import current_build_context
from hypothesis.database import ExampleDatabase
from hypothesis.errors import FailedHealthCheck, StopTest, UnsatisfiedAssumption

from pytest_mnode.outcome.describe import ranks_text
from pytest_mnode.rank.votes import FOREVER_S, Votes

LATE_S = 3.0
"""How long a rank whose example failed waits for the votes of others, which may wait for it."""
_MOST_CHARS = 1000


class Kind(StrEnum):
    """The outcome of an example in a rank, or what a rank does instead of an example."""

    PASSED = "passed"
    FAILED = "failed"
    REJECTED = "rejected"
    STOPPED = "stopped"
    FETCHES = "fetches"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Ballot:
    """One rank's ballot.

    drawn: digest of the example's values; the key of a fetch. origin: type and place of the error.
    values: rank 0's result from the database, or its seed, in hexadecimal. well: whether the rank
    ended the test without an error.
    """

    kind: Kind
    drawn: str = ""
    origin: str = ""
    values: Sequence[str] = ()
    well: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """The step of all ranks. differ: ranks drew different examples; the test cannot continue.

    failed: ranks in which the example failed. origin: text that distinguishes this failure.
    ended: ranks that have ended the test. well: all of these ended it without an error.
    """

    kind: Kind
    differ: bool = False
    failed: Sequence[int] = ()
    origin: str = ""
    values: Sequence[str] = ()
    ended: Sequence[int] = ()
    well: bool = True


_Vote = TypeVar("_Vote", bound=Ballot | Decision)


def received(vote: type[_Vote], sent: Any) -> _Vote:
    """A vote in its form as JSON."""
    return vote(**{**sent, "kind": Kind(sent["kind"])})


def decide(ballots: Sequence[Ballot]) -> Decision:
    """The decision from the ballots, by rank: an example fails if it failed in any rank."""
    failed = tuple(rank for rank, one in enumerate(ballots) if one.kind is Kind.FAILED)
    ended = tuple(rank for rank, one in enumerate(ballots) if one.kind is Kind.ENDED)
    kinds = {one.kind for one in ballots}
    apart = {Kind.STOPPED, Kind.FETCHES, Kind.ENDED} & kinds and len(kinds) > 1
    return Decision(
        kind=next(kind for kind in _STRONGEST if kind in kinds),
        differ=bool(apart) or len({one.drawn for one in ballots}) > 1,
        failed=failed,
        origin=" ".join(f"{rank}: {ballots[rank].origin}" for rank in failed),
        values=ballots[0].values,
        ended=ended,
        well=all(ballots[rank].well for rank in ended),
    )


_STRONGEST = (*(Kind.ENDED, Kind.FAILED, Kind.REJECTED, Kind.STOPPED, Kind.FETCHES, Kind.PASSED),)


class FailedElsewhereError(Exception):
    """The example failed only in other ranks, which report it."""


class EndError(FailedHealthCheck):  # the engine stops at once at a FailedHealthCheck
    """This rank can try no more examples. error: the error to report."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Examples:
    """One hypothesis test in this rank."""

    def __init__(self, item: Any, test: Any, votes: Votes, rank: int) -> None:
        """test: the function of `item` that `given` returned."""
        self._item, self._test, self._votes, self._rank = item, test, votes, rank
        self._over = False
        self._failures: dict[str, type[Exception]] = {}

    def run(self) -> Generator[None, object, object]:
        """Wrapper around the call of the test, for pytest's hook."""
        test, result, errors = self._test, None, list[BaseException]()
        own: BaseException | None = None
        seed = test._hypothesis_internal_use_seed
        before = test._hypothesis_internal_use_settings, seed, test.hypothesis.inner_test
        try:
            drawn = f"{random.SystemRandom().getrandbits(64):x}"
            [one] = self._vote(Ballot(Kind.FETCHES, values=(drawn,))).values
            if seed is None and sys.modules["hypothesis.core"].global_force_seed is None:
                test._hypothesis_internal_use_seed = int(one, 16)
            test._hypothesis_internal_use_settings = self._settings(before[0])
            test.hypothesis.inner_test = self._agreed(test.hypothesis.inner_test)
            result = yield
            kept = getattr(self._item, "_excinfo", None) or []  # unittest's tests raise no error
            errors = [error for one in kept if (error := _own(one.value)) is not None]
            kept[:] = map(pytest.ExceptionInfo.from_exception, errors)
        except BaseException as error:
            own = _own(error)
        finally:
            test._hypothesis_internal_use_settings, test._hypothesis_internal_use_seed = before[:2]
            test.hypothesis.inner_test = before[2]
            self._end(well=own is None and not errors)
        if own is not None:
            raise own
        return result

    def _settings(self, given: settings) -> settings:
        """Settings without a deadline, because ranks wait for the slowest; only rank 0 checks for
        slowness. The limit of the test in ranks still holds."""
        unjudged = [HealthCheck.too_slow] if self._rank else []
        database = given.database
        return settings(
            given,
            deadline=None,
            database=None if database is None else _OneDatabase(database, self._rank, self._vote),
            suppress_health_check=[*given.suppress_health_check, *unjudged],
        )

    def _agreed(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """`body`, whose every call has the outcome that all ranks agreed on."""

        @functools.wraps(body)
        def agreed(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            kind, value = Kind.PASSED, None
            error: BaseException | None = None
            try:
                value = body(*args, **kwargs)
            except StopTest as stopped:
                kind, error = Kind.STOPPED, stopped
            except UnsatisfiedAssumption as rejected:
                kind, error = Kind.REJECTED, rejected
            except FailedHealthCheck:
                raise
            except (Exception, SystemExit, pytest.fail.Exception) as failed:
                kind, error = Kind.FAILED, failed
            self._judge(kind, error, f"{body.__name__}({_shown(kwargs)})")
            return value

        return agreed

    def _judge(self, kind: Kind, error: BaseException | None, call: str) -> None:
        __tracebackhide__ = True
        context = current_build_context()
        drawn = hashlib.blake2b(repr(context.data.choices).encode()).hexdigest()
        own = error if kind is Kind.FAILED else None
        ballot = Ballot(kind, drawn, origin=_origin(own))
        try:
            decision = self._vote(ballot, own, call)
        except TimeoutError:
            assert own is not None
            why = f"not shrunk: other ranks did not end it within {LATE_S:.0f} s"
            raise EndError(_noted(own, call, why)) from None
        match decision.kind:
            case Kind.FAILED if context.is_final:
                raise own or FailedElsewhereError
            case Kind.FAILED:
                name = decision.origin  # the engine distinguishes failures by it
                kinds = self._failures
                raise kinds.setdefault(name, type("FailedExample", (Exception,), {}))(name)
            case Kind.REJECTED | Kind.STOPPED:
                if error is None:
                    reject()
                raise error

    @staticmethod
    def _why_over(decision: Decision, own: BaseException | None, call: str) -> BaseException:
        if own is not None:
            why = "not shrunk: ranks drew different values after it failed"
            return _noted(own, call, why)
        if decision.failed or not decision.well:
            return FailedElsewhereError()
        if decision.ended:
            text = f"{ranks_text(decision.ended)} had tried all examples, but other ranks had not"
        else:
            text = "ranks drew different values"
        return pytest.fail.Exception(
            f"{text}; every rank must draw the same examples: draw from strategies that do not "
            f"depend on the rank, nor on anything random\n{call}",
            pytrace=False,
        )

    def _vote(self, ballot: Ballot, own: BaseException | None = None, call: str = "") -> Decision:
        """Vote and return the decision. Raises EndError if this was the last vote."""
        if self._over:
            raise EndError(own or FailedElsewhereError())
        limit_s = FOREVER_S if own is None and ballot.kind is not Kind.ENDED else LATE_S
        try:
            answer = self._votes.agree(
                asdict(ballot),
                lambda ballots: asdict(decide([received(Ballot, one) for one in ballots])),
                limit_s,
            )
        except TimeoutError:
            self._over = True
            raise
        decision = received(Decision, answer)
        self._over = bool(decision.ended) or decision.differ
        if self._over and ballot.kind is not Kind.ENDED:
            raise EndError(self._why_over(decision, own, call))
        return decision

    def _end(self, well: bool) -> None:
        """Notify ranks that are still trying examples."""
        if not self._over:
            with contextlib.suppress(TimeoutError):
                self._vote(Ballot(Kind.ENDED, well=well))


class _OneDatabase(ExampleDatabase):
    """The database of failing examples: only rank 0 uses it, and the others get what it read."""

    def __init__(
        self, real: ExampleDatabase, rank: int, vote: Callable[[Ballot], Decision]
    ) -> None:
        super().__init__()
        self._real = real if rank == 0 else None
        self._vote = vote

    def fetch(self, key: bytes) -> Iterable[bytes]:
        own = sorted(self._real.fetch(key)) if self._real is not None else ()
        found = tuple(value.hex() for value in own)
        all_get = self._vote(Ballot(Kind.FETCHES, drawn=key.hex(), values=found)).values
        return map(bytes.fromhex, all_get)

    def save(self, key: bytes, value: bytes) -> None:
        if self._real is not None:
            self._real.save(key, value)

    def delete(self, key: bytes, value: bytes) -> None:
        if self._real is not None:
            self._real.delete(key, value)

    def move(self, src: bytes, dest: bytes, value: bytes) -> None:
        if self._real is not None:
            self._real.move(src, dest, value)


def _own(error: BaseException) -> BaseException | None:
    """The error that this rank reports; None if only other ranks report one."""
    if isinstance(error, EndError):
        return _own(error.error)
    if isinstance(error, FailedElsewhereError):
        return None
    if isinstance(error, BaseExceptionGroup):
        rest = error.split(FailedElsewhereError)[1]
        return rest.exceptions[0] if rest is not None and len(rest.exceptions) == 1 else rest
    return error


def _noted(error: BaseException, call: str, why: str) -> BaseException:
    error.add_note(f"Failing test case ({why}): {call}")
    return error


def _shown(kwargs: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in kwargs.items())[:_MOST_CHARS]


def _origin(error: BaseException | None) -> str:
    """Type and place of an error, by which hypothesis distinguishes failures."""
    if error is None:
        return ""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}" if frame else ""
    return f"{type(error).__name__} {where}"
