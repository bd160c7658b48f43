"""Whether a job that names an image runs in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.criteria.launching.paths import SubmissionPath
from pytest_mnode.criteria.launching.reports import RankReport
from pytest_mnode.criteria.launching.starting import job_of, start
from pytest_mnode.measurement import Measurement, equals
from pytest_mnode.spec import Spec
from pytest_mnode.spec.launch import StartPromise

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster

_ROOT = "import os; s = os.stat('/'); print(f'{s.st_dev}:{s.st_ino}')"
_STYLES = ("torchrun", "deepspeed", "megatron")
_NAME = "ranks in the image"


def measured_image(cluster: Cluster, path: SubmissionPath, spec: Spec, folder: Path) -> Measurement:
    """Submit a job with the promised image; inconclusive where the path runs no images.

    folder: of our own job files.
    """
    promised = spec.criteria.launch
    assert promised is not None
    source, size = f"criteria.launch.image {promised.image}", len(cluster.nodes)
    if not path.runs_images:
        why = f"the {path.name} path of this launcher starts commands on nodes and runs no images"
        return Measurement.unknown(_NAME, why, expected=equals(size), source=source)
    style = next((style for style in _STYLES if promised.start(style)), "torchrun")
    promise = promised.start(style) or StartPromise.model_validate({})
    plain = job_of(style, promise, folder, spec, size)
    job = plain.model_copy(update={"image": promised.image})
    started = start(path, job, cluster.nodes[: job.node_count], "image", 2 * promise.within_s)
    asked = cluster.run([cluster.python, "-I", "-S", "-c", _ROOT])
    roots = {result.node: result.stdout.strip() for result in asked if result.ok}
    return judged_image(started.outcome.reports, roots, started.expected.size, source)


def judged_image(
    reports: Sequence[RankReport], roots: Mapping[str, str], size: int, source: str
) -> Measurement:
    """A rank in an image has another root file system than its node. roots: by node."""
    outside = [
        f"rank {r.rank} on {r.node}"
        for r in reports
        if not r.root or r.root == roots.get(r.node, r.root)
    ]
    value = len(reports) - len(outside) if reports else None
    return Measurement(_NAME, value, "", equals(size), source, outside[0] if outside else None)
