"""Tables of the state and rate of every path and rail, for the certificate. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pytest_mnode.measuring.locating.diagnosis import Diagnosis
from pytest_mnode.measuring.locating.rates import Rates
from pytest_mnode.measuring.locating.wording import Names
from pytest_mnode.path_rates import NOT_MEASURED, PathRates, State


def path_rates(rates: Rates, found: Diagnosis, names: Names) -> tuple[PathRates, ...]:
    """Tables of these rates: of NICs, and of NVLink where it joins nodes; none without a path.

    found: the diagnosis, which confirms some of the slow paths.

    A slow path has failed if it or one of its ends is confirmed as slow; otherwise it is suspect.
    """
    slowest = np.where(rates.measured, np.fmin.reduce(rates.best), np.nan)
    directions, paths = np.fmin(rates.tx, rates.rx).T, _paths(rates, found)
    tables = []
    for rails in (slice(rates.nics), slice(rates.nics, None)):
        if not (has := rates.has[rails].any(axis=0)).any():
            continue
        tables.append(
            PathRates(
                nodes=names.nodes,
                rails=names.rails[rails],
                bound_mbits_s=float(rates.bounds_mbits_s[rails][0]),
                states=_rows(np.where(has, paths, State.NOT_TESTED.letter)),
                mbits_s=tuple(_numbers(row) for row in np.where(has, slowest, np.nan)),
                rail_states=_rows(_rails(rates, found)[:, rails]),
                rail_mbits_s=tuple(_numbers(row) for row in directions[:, rails]),
            )
        )
    return tuple(tables)


def _limits(rates: Rates, found: Diagnosis) -> NDArray[np.float64]:
    """By rail, the rate that a path must carry: the threshold, but the bound if the whole rail is
    slow or if links do not keep a rate."""
    limits = rates.threshold.copy()
    if found.unsteady_mbits_s is not None:
        limits[:] = rates.bounds_mbits_s
    slow = list(found.too_slow_rails)
    limits[slow] = rates.bounds_mbits_s[slow]
    return limits


def _paths(rates: Rates, found: Diagnosis) -> NDArray[np.str_]:
    slow = rates.best < _limits(rates, found)[:, None, None]
    sure = np.zeros_like(slow)
    sure[list(found.too_slow_rails)] = True
    for node in found.nodes:
        rails = list(node.rails)
        if node.confirmed and node.sends_slowly:
            sure[rails, node.node, :] = True
            slow[rails, node.node, :] |= np.isfinite(rates.best[rails, node.node, :])
        if node.confirmed and node.receives_slowly:
            sure[rails, :, node.node] = True
            slow[rails, :, node.node] |= np.isfinite(rates.best[rails, :, node.node])
    for path in found.paths:
        ways = [(path.sender, path.receiver), (path.receiver, path.sender)]
        for sender, receiver in ways[: 1 + path.both_ways]:
            # With two nodes no link is faster than others, so the limits do not show what is slow.
            slow[list(path.rails), sender, receiver] = True
            sure[list(path.rails), sender, receiver] |= path.confirmed
    letters = np.full(slow.shape[1:], State.NOT_TESTED.letter)
    letters[rates.measured] = State.PASSED.letter
    letters[rates.crowded.any(axis=0)] = State.NOT_TESTED.letter  # by itself
    letters[((slow & ~rates.crowded) | rates.silent).any(axis=0)] = State.SUSPECT.letter
    letters[(slow & sure).any(axis=0) | rates.wrong] = State.FAILED.letter
    np.fill_diagonal(letters, State.NOT_TESTED.letter)
    return letters


def _rails(rates: Rates, found: Diagnosis) -> NDArray[np.str_]:
    """State letters, by node and rail."""
    directions = np.fmin(rates.tx, rates.rx)
    letters = np.full(directions.shape, State.NOT_TESTED.letter)
    letters[np.isfinite(rates.tx) & np.isfinite(rates.rx)] = State.PASSED.letter
    letters[rates.slow_tx | rates.slow_rx] = State.SUSPECT.letter
    for rail in found.too_slow_rails:
        letters[rail, directions[rail] < rates.bounds_mbits_s[rail]] = State.FAILED.letter
    for node in found.nodes:
        if node.confirmed:
            letters[list(node.rails), node.node] = State.FAILED.letter
    return letters.T


def _rows(letters: NDArray[np.str_]) -> tuple[str, ...]:
    return tuple("".join(row) for row in letters)


def _numbers(row: NDArray[np.float64]) -> str:
    return " ".join(f"{rate:.0f}" if np.isfinite(rate) else NOT_MEASURED for rate in row)
