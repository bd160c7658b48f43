"""Controllers beside the cluster's own scheduler, on its login node: Kueue, Volcano, JobSet."""

from __future__ import annotations

import base64
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_mnode.launchers.kubernetes.pods import conditions, is_true
from tests.engines.kubernetes.bed import KubernetesOnRack
from tests.engines.kubernetes.programs import (
    COSCHEDULING,
    JOBSET,
    KUEUE,
    TRAINER,
    TRAINING_OPERATOR,
    VOLCANO,
    Module,
    source,
    unavailable,
)

GPU = "mnode.test/gpu"
"""A resource with one unit per node, which a rank requests."""
CRDS = {
    KUEUE: ("config/components/crd/bases",),
    # Volcano's controller waits until this kind exists as well.
    VOLCANO: ("config/crd/volcano/bases", "config/crd/jobflow/bases"),
    JOBSET: ("config/components/crd/bases",),
    COSCHEDULING: ("manifests/coscheduling",),
    TRAINER: ("manifests/base/crds",),
    TRAINING_OPERATOR: ("manifests/base/crds",),
}
_KUEUE_PORTS, _JOBSET_PORTS = (9443, 8081), (9444, 8082)
"""Ports of webhooks and of health checks."""
_READY_S = 60.0
KUEUE_CONFIG = """\
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
namespace: kueue-system
health: {{healthProbeBindAddress: "127.0.0.1:{health}"}}
metrics: {{bindAddress: "0"}}
webhook: {{port: {port}, certDir: {certificates}}}
internalCertManagement: {{enable: false}}
leaderElection: {{leaderElect: false}}
featureGates: {{VisibilityOnDemand: false}}
integrations: {{frameworks: ["batch/job", "jobset.x-k8s.io/jobset"]}}
"""
JOBSET_CONFIG = """\
apiVersion: config.jobset.x-k8s.io/v1alpha1
kind: Configuration
health: {{healthProbeBindAddress: "127.0.0.1:{health}"}}
metrics: {{bindAddress: "0", certDir: {certificates}}}
webhook: {{port: {port}, certDir: {certificates}}}
internalCertManagement: {{enable: false}}
leaderElection: {{leaderElect: false}}
"""
VOLCANO_SCHEDULER = """\
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang, enablePreemptable: false}, {name: conformance}]
- plugins: [{name: overcommit}, {name: predicates}, {name: proportion}, {name: nodeorder}]
"""


def documents(path: Path) -> list[dict[str, Any]]:
    """Objects in a file, or in all files of a folder."""
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    found = [one for file in files for one in yaml.safe_load_all(file.read_text())]
    return [one for one in found if one]


def give_gpus(bed: KubernetesOnRack) -> None:
    """Add one GPU to each node."""
    patch = yaml.safe_dump({"status": {"capacity": {GPU: "1"}, "allocatable": {GPU: "1"}}})
    for node in bed.names:
        bed.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "--patch", patch)


def add_priorities(bed: KubernetesOnRack) -> None:
    """Create the PriorityClasses low and high."""
    api = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    for value, name in enumerate(("low", "high"), 1):
        bed.apply({**api, "metadata": {"name": name}, "value": value})


def add_crds(bed: KubernetesOnRack, crds: Iterable[dict[str, Any]]) -> None:
    """Create CRDs and wait for their kinds; large ones do not fit into an annotation."""
    some = list(crds)
    bed.apply(*some, server_side=True)
    names = [f"crd/{one['metadata']['name']}" for one in some]

    def served() -> bool:
        found = bed.get(*names)
        return all(is_true(conditions(one), "Established") for one in found.get("items", [found]))

    bed.await_that(served, _READY_S, "definitions are served")


class Kueue:
    """Kueue's controller; without kube-proxy the API server reaches its webhooks by URL."""

    def __init__(self, bed: KubernetesOnRack) -> None:
        self._bed = bed

    def start(self) -> None:
        bed = self._bed
        own, authority = certificates(bed, "kueue")
        # Its metrics need certificates at a fixed path, even if there are none.
        fixed = own / "etc" / "kueue" / "metrics" / "certs"
        fixed.mkdir(parents=True)
        root = source(KUEUE)
        crd = root / "config/components/crd"
        used = yaml.safe_load((crd / "kustomization.yaml").read_text())["patches"]
        patches = [one for patch in used for one in documents(crd / patch["path"])]
        converted = {one["metadata"]["name"]: one["spec"] for one in patches}
        crds = crds_of(KUEUE)
        for one in crds:
            one["spec"] |= converted.get(one["metadata"]["name"], {})
        port, health = _KUEUE_PORTS
        reach(bed, crds, authority, port)
        add_crds(bed, crds)
        config = own / "config.yaml"
        config.write_text(KUEUE_CONFIG.format(port=port, health=health, certificates=own))
        for name in ("tls.key", "tls.crt"):
            shutil.copy(own / name, fixed)
        mount = f"mount -t overlay overlay -o lowerdir={own}/etc:/etc /etc"
        run = f"{mount} && exec kueue --config={config} --kubeconfig={bed.kubeconfig}"
        bed.start_daemon("kueue", bed.login, ["unshare", "--mount", "sh", "-c", run])
        hooks = documents(root / "config/components/webhook/manifests.yaml")
        reach(bed, hooks, authority, port)
        await_healthy(bed, health, "Kueue")
        bed.apply(*hooks)

    def queue(self, name: str, gpus: int) -> None:
        """Create a LocalQueue and a ClusterQueue with this quota of a pod's resources."""
        flavor = {"name": "any", "resources": [{"name": GPU, "nominalQuota": gpus}]}
        group = {"coveredResources": [GPU], "flavors": [flavor]}
        api = "kueue.x-k8s.io/v1beta1"
        named = {"metadata": {"name": name}, "apiVersion": api}
        self._bed.apply(
            {"apiVersion": api, "kind": "ResourceFlavor", "metadata": {"name": "any"}},
            {
                **named,
                "kind": "ClusterQueue",
                "spec": {
                    "namespaceSelector": {},
                    "resourceGroups": [group],
                    "preemption": {"withinClusterQueue": "LowerPriority"},
                },
            },
            {**named, "kind": "LocalQueue", "spec": {"clusterQueue": name}},
        )

    def await_collected(self, queue: str) -> None:
        """Wait until a deleted Job's Workload is removed: only then is its quota free."""
        template = {"spec": self._bed.pod("unnamed", "true")["spec"]}
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "tried", "labels": {"kueue.x-k8s.io/queue-name": queue}},
            "spec": {"template": template},
        }
        await_collected(self._bed, job, "workloads.kueue.x-k8s.io")


def start_jobset(bed: KubernetesOnRack) -> None:
    """Start JobSet's controller and the webhooks of its kind."""
    define(bed, JOBSET)
    own, authority = certificates(bed, "jobset")
    port, health = _JOBSET_PORTS
    config = own / "config.yaml"
    config.write_text(JOBSET_CONFIG.format(port=port, health=health, certificates=own))
    program = ["jobset", f"--config={config}", f"--kubeconfig={bed.kubeconfig}"]
    bed.start_daemon("jobset", bed.login, program)
    hooks = documents(source(JOBSET) / "config/components/webhook/manifests.yaml")
    for one in hooks:
        one["metadata"]["name"] = f"jobset-{one['metadata']['name']}"
        one["webhooks"] = [w for w in one["webhooks"] if "jobset" in w["name"]]
    reach(bed, hooks, authority, port)
    await_healthy(bed, health, "JobSet")
    bed.apply(*hooks)
    spec = {"replicas": 1, "name": "node", "template": {"spec": {"template": {
        "spec": bed.pod("unnamed", "true")["spec"]}}}}  # fmt: skip
    tried = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "tried"},
        "spec": {"suspend": True, "replicatedJobs": [spec]},
    }
    await_collected(bed, tried, "jobs.batch")


@pytest.fixture(scope="session")
def jobset(bed: KubernetesOnRack) -> None:
    assert unavailable([JOBSET]) is None
    start_jobset(bed)


@pytest.fixture(scope="session")
def kueue(bed: KubernetesOnRack) -> Kueue:
    """A running Kueue with a queue as large as the cluster, and one that is larger."""
    assert unavailable([KUEUE]) is None
    kueue = Kueue(bed)
    kueue.start()
    kueue.queue("cluster", len(bed.names))
    kueue.queue("larger", 2 * len(bed.names))
    kueue.await_collected("larger")
    return kueue


@pytest.fixture(scope="session")
def volcano(bed: KubernetesOnRack) -> None:
    assert unavailable([VOLCANO]) is None
    start_volcano(bed)


def certificates(bed: KubernetesOnRack, name: str) -> tuple[Path, str]:
    """A folder with tls.key and tls.crt of a server on the login node, and its CA bundle."""
    own = bed.directory / name
    own.mkdir()
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{bed.login.address}",
         "-keyout", str(own / "tls.key"), "-out", str(own / "tls.crt")],
        check=True, capture_output=True,
    )  # fmt: skip
    return own, base64.b64encode((own / "tls.crt").read_bytes()).decode()


def reach(bed: KubernetesOnRack, found: list[dict[str, Any]], authority: str, port: int) -> None:
    """Replace services by URLs, because kube-proxy is absent."""
    for config in clients(found):
        path = config.pop("service").get("path", "/convert")
        config |= {"url": f"https://{bed.login.address}:{port}{path}", "caBundle": authority}


def await_healthy(bed: KubernetesOnRack, port: int, what: str) -> None:
    ready = ["curl", "--fail", "--silent", f"http://127.0.0.1:{port}/readyz"]
    bed.await_that(lambda: bed.run(*ready).returncode == 0, _READY_S, f"{what} is ready")


def await_collected(bed: KubernetesOnRack, owner: dict[str, Any], owned: str) -> None:
    """Wait until the dependents of a deleted object are removed.

    The garbage collector learns of new kinds at its start and then every 30 s. owned: the kind of
    objects that the controller makes.
    """
    bed.end_daemon("controllers")
    bed.start_controllers()
    bed.apply(owner)
    bed.await_that(lambda: bool(bed.get(owned)["items"]), _READY_S, owned)
    bed.kubectl("delete", owner["kind"].lower(), owner["metadata"]["name"], "--wait=false")
    bed.await_that(lambda: not bed.get(owned)["items"], _READY_S, f"{owned} are collected")


def clients(found: Any) -> Iterator[dict[str, Any]]:
    """Every clientConfig with a service in these objects."""
    if isinstance(found, dict):
        if "service" in found.get("clientConfig", {}):
            yield found["clientConfig"]
        for value in found.values():
            yield from clients(value)
    elif isinstance(found, list):
        for value in found:
            yield from clients(value)


def start_volcano(bed: KubernetesOnRack) -> None:
    """Start Volcano's controller and scheduler; our objects contain what its webhooks would add."""
    define(bed, VOLCANO)
    bed.kubectl("create", "namespace", "volcano-system")
    config = bed.directory / "volcano.conf"
    config.write_text(VOLCANO_SCHEDULER)
    own = [f"--kubeconfig={bed.kubeconfig}", "--leader-elect=false"]
    for package in ("controller-manager", "scheduler"):
        program = str(VOLCANO.bin / package)
        more = [f"--scheduler-conf={config}"] if package == "scheduler" else []
        bed.start_daemon(f"volcano-{package}", bed.login, [program, *own, *more])
    queues = ["get", "queues.scheduling.volcano.sh", "-o", "name"]
    bed.await_that(
        lambda: "default" in bed.kubectl(*queues, check=False), _READY_S, "Volcano's default queue"
    )


def define(bed: KubernetesOnRack, *modules: Module) -> None:
    """Create the CRDs of modules that the server does not serve yet."""
    new = [module for module in modules if module not in bed.defined]
    if new:
        add_crds(bed, [crd for module in new for crd in crds_of(module)])
        bed.defined.update(new)


def crds_of(module: Module) -> list[dict[str, Any]]:
    """CRD manifests in a module's source."""
    found = [one for folder in CRDS[module] for one in documents(source(module) / folder)]
    return [one for one in found if one.get("kind") == "CustomResourceDefinition"]
