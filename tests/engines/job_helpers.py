"""Source text that tests of launched jobs share in their runs on real engines."""

from __future__ import annotations

from pathlib import Path

QUICK = str(Path(__file__).parents[1] / "jobs" / "quick")
"""A replacement of torchrun that starts quickly."""
JOB_HELPERS = """
    import time
    from pytest_mnode import Job

    def quick(argv, **fields):
        # Its torchrun is a stand-in that starts in a moment.
        return Job(argv, env={"PYTHONPATH": QUICK}, **fields)

    def until(job, text, nodes=None, limit=60):
        end = time.monotonic() + limit
        while not all(text in job.output(n) for n in nodes or job.nodes):
            assert time.monotonic() < end, (job.events, {n: job.output(n) for n in job.nodes})
            assert job.poll() is None, (job.poll(), job.events)
            time.sleep(0.05)

    def whats(job):
        return [e.what for e in job.events]
"""
