"""Whether jobs run in the image that they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.criteria.launching.paths import SubmissionPath
from pytest_mnode.criteria.launching.reports import RankReport
from pytest_mnode.criteria.launching.starting import job_of, start
from pytest_mnode.spec.launch import StartPromise

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec
    from pytest_mnode.spec.launch import LaunchCriterion

_ROOT = "import os; s = os.stat('/'); print(f'{s.st_dev}:{s.st_ino}')"
_STYLES = ("torchrun", "deepspeed", "megatron")


def in_image(reports: Sequence[RankReport], roots: Mapping[str, str]) -> list[RankReport]:
    """Ranks that see another root of the file system than their node has by itself."""
    return [r for r in reports if r.root and r.root != roots.get(r.node, r.root)]


def record_image(
    cluster: Cluster,
    promised: LaunchCriterion,
    spec: Spec,
    measure: Measure,
    *,
    path: SubmissionPath,
    folder: Path,
) -> None:
    """Submit a job with the image that is promised. A path without images leaves it unmeasured.

    folder: of our own job files.
    """
    name, source = "ranks in the image", f"criteria.launch.image {promised.image}"
    size = len(cluster.nodes)
    if not path.runs_images:
        why = f"the {path.name} path of this launcher starts commands on nodes and runs no images"
        measure(name, None, equals=size, source=source, note=why)
        return
    style = next((style for style in _STYLES if promised.start(style)), "torchrun")
    promise = promised.start(style) or StartPromise.model_validate({})
    plain = job_of(style, promise, folder, spec, size)
    job = plain.model_copy(update={"image": promised.image})
    started = start(path, job, cluster.nodes[: job.node_count], "image", 2 * promise.within_s)
    asked = cluster.run([cluster.python, "-I", "-S", "-c", _ROOT])
    roots = {result.node: result.stdout.strip() for result in asked if result.ok}
    inside = in_image(started.outcome.reports, roots)
    outside = [r for r in started.outcome.reports if r not in inside]
    measure(
        name,
        len(inside) if started.outcome.reports else None,
        equals=started.expected.size,
        source=source,
        culprit=f"rank {outside[0].rank} on {outside[0].node}" if outside else None,
    )
