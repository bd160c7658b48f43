"""Co-scheduling (gangs): a job gets all of its nodes at once, or none and waits.

One experiment for all schedulers. `experiments` conducts it through an engine (`engine`; `slurm` is
the first), and `watch` records the scheduler's answers beside the heartbeats of the ranks
(`heartbeat_rank`). A `Window` holds what was seen in a round; `timeline` and `heartbeats` read it,
and the `judge_` files turn it into measurements, without a process or a clock. `Site` does all of
it.
"""

from __future__ import annotations

from pytest_mnode.gang.site import Report, Site

__all__ = ["Report", "Site"]
