"""Cold start: from the start of the command to the end of the first distributed test's body.

For pytest-mnode that is a pytest run of one file with one test, whose nodes are plain processes on
loopback; the peer is torchrun with a script that does the same. Both import torch from the same
files, which a first run of each (not counted) has brought into the page cache. `whole command` is
the time until the command and all its processes have ended.
"""

from __future__ import annotations

from benchmarks import peers, table

_LIMIT_S = 120.0


def measure(repeats: int, ranks: tuple[int, ...] = (2, 4)) -> str:
    """The table, for a terminal."""
    rows = []
    for count in ranks:
        first: dict[str, list[float]] = {}
        whole: dict[str, list[float]] = {}
        contenders = (peers.mnode("warm"), peers.TORCHRUN)
        for turn in range(repeats + 1):
            for peer in contenders:
                ran = peer.run(count, 1, _LIMIT_S)
                ends = ran.times("end")
                if turn and ends and ran.finished.code == 0:
                    first.setdefault(peer.name, []).append(ends[0] - ran.finished.started)
                    whole.setdefault(peer.name, []).append(ran.finished.seconds)
        for peer in contenders:
            own, to = first.get(peer.name, []), first.get(peers.TORCHRUN.name, [])
            all_of_it = whole.get(peer.name, [])
            ratio = table.ratio(own, to)
            cells = (table.ms(own), table.spread_ms(own), ratio, table.ms(all_of_it))
            rows.append((f"{count}  {peer.name}", *cells, str(len(own))))
    head = ("ranks, way", "first test ms", "10–90 % ms", "to torchrun", "whole command ms", "runs")
    return table.terminal("Cold start", head, rows)
