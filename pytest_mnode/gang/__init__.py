"""Co-scheduling (gangs): a job gets all of its nodes at once, or none and waits.

The experiments are the same for all schedulers. `experiments` conducts them through an engine
(`engine`; one is `slurm`), and `watch` records the scheduler's answers and the heartbeats of the
ranks (`heartbeat_rank`). A `Window` holds the record of a round; `heartbeats` reads it, and the
`judge_` modules turn it into measurements, without a process or a clock. `Site` runs all of these.
"""

from __future__ import annotations

from pytest_mnode.gang.site import Report, Site

__all__ = ["Report", "Site"]
