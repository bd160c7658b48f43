"""A program for the login node: a gang runs under the criterion's watch while a fault occurs.

`struck.py TEMPLATE DIRECTORY FAULT=SIGNS…` prints the watch's observations; files in the directory
say when a fault may begin and end. SIGNS: a fault ends once so many signs of it were seen.
"""

from __future__ import annotations

import json
import sys
import time
from math import inf
from pathlib import Path

from pytest_mnode.backends.kubernetes import KubernetesBackend
from pytest_mnode.gang.engine import GangRequest
from pytest_mnode.gang.judging import parts_held
from pytest_mnode.gang.kubernetes.engine import KubernetesEngine
from pytest_mnode.gang.watch import Watch
from pytest_mnode.gang.window import State, sightings
from pytest_mnode.options import Settings
from pytest_mnode.spec import Scheduler
from pytest_mnode.spec.gang import GangCriterion

SIZE, LIMIT_S = 3, 60.0


class Round:
    """One gang and one fault."""

    def __init__(self, engine: KubernetesEngine, fault: str, wanted: int, directory: Path) -> None:
        self._fault, self._wanted, self._directory = fault, wanted, directory
        self._arena = engine.capacity().nodes
        self._watch = Watch(engine, fault, time, self._arena, 1.0)
        self._gang = self._watch.submit(GangRequest("A", SIZE, 120.0, 300.0, self._arena))

    def run(self) -> dict[str, object]:
        watch = self._watch
        watch.until(
            lambda: watch.state(self._gang) is State.WHOLE and len(self._heard(0)) == SIZE, LIMIT_S
        )
        nodes = sorted(watch.held(self._gang))
        self._say("begin", json.dumps(nodes))
        self._await("begun")
        began = time.time()
        watch.until(lambda: len(self._signs()) >= self._wanted, LIMIT_S)
        took = time.time() - began
        self._say("end")
        self._await("ended")
        ended = time.time()
        if watch.state(self._gang) is State.WHOLE:  # what ranks wrote meanwhile is read later
            watch.until(lambda: self._heard(ended) == nodes, 2 * LIMIT_S)
        else:  # to its end, without intervention
            watch.until(lambda: watch.state(self._gang) is State.OVER, LIMIT_S)
        signs = self._signs()
        watch.clear_up(self._arena, LIMIT_S)
        window = watch.window()
        judged = parts_held(window, GangCriterion.model_validate({"settle": "60 s"}))
        found = {"nodes": nodes, "signs": signs, "seconds": took, "others": list(window.others)}
        found["heard_meanwhile"] = self._heard(began, ended)
        return found | {"verdict": str(judged.verdict), "note": judged.note}

    def _signs(self) -> list[str]:
        """What the observations show so far."""
        watch = self._watch
        window = watch.window()
        seen = sightings(self._gang, watch.observations)
        first = next((at for at, one in enumerate(seen) if one.state is State.WHOLE), len(seen))
        states = dict.fromkeys(s.status for s in seen[first:] if s.state is not State.WHOLE)
        why = [*window.others, *(one.why for one in watch.observations if one.why)]
        return [*states, *why[:9]]

    def _heard(self, since_s: float, until_s: float = inf) -> list[str]:
        """Nodes whose rank of this gang wrote a heartbeat in this period."""
        beats = self._watch.window().beats(self._gang)
        return sorted({beat.node for beat in beats if since_s < beat.at_s < until_s})

    def _say(self, what: str, text: str = "") -> None:
        path = self._directory / f"{what}-{self._fault}"
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").rename(path)

    def _await(self, what: str) -> None:
        self._watch.until((self._directory / f"{what}-{self._fault}").exists, 2 * LIMIT_S)


def main(template: str, directory: str, *faults: str) -> None:
    scheduler = Scheduler.model_validate({"kind": "kubernetes", "engine": "native"})
    manifest = json.loads(Path(template).read_text())
    engine = KubernetesEngine(
        scheduler,
        Settings(),
        manifest,
        leftovers=KubernetesBackend().leftovers,
        python=sys.executable,
    )
    try:
        named = [(fault, int(signs)) for fault, _, signs in (f.partition("=") for f in faults)]
        found = {f: Round(engine, f, signs, Path(directory)).run() for f, signs in named}
    finally:
        engine.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
