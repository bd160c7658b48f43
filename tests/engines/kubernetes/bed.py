"""A real Kubernetes on a rack: control plane on the last node, a kubelet on each of the others.

All of it belongs to the rack, and so ends with the process that made it, however that ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.launchers.kubernetes.pods import conditions, is_true
from pytest_mnode.launchers.rack import Rack, cgroups
from pytest_mnode.machine.namespaces import GROUP_PREFIX
from tests.engines.kubernetes import node_files, programs
from tests.engines.on_rack import OnRack
from tests.inner import need

COMPUTE_NODES = 4
SERVICE = "10.96.0.1"
"""Where pods find the API server. There is no kube-proxy: the control plane's node has it."""
ADMIN = "admin"
ETCD = "http://127.0.0.1:2379"
UP_LIMIT_S = 120.0


def unavailable() -> str | None:
    """Why Kubernetes cannot run here, in one line; None if it can."""
    if (reason := programs.unavailable()) is not None:
        return reason
    if os.geteuid() != 0:
        return "kubelets on the rack need root"
    return Rack.unavailable("root")


def need_kubernetes() -> None:
    """Skip if Kubernetes cannot run here."""
    need(unavailable())


class KubernetesOnRack(OnRack):
    """`with KubernetesOnRack() as bed`: four nodes, named node0 …, and a control plane.

    Pods with hostNetwork have the node's links, including fab0; pods with their own address are
    reached over the management network.
    """

    def __init__(self, nodes: int = COMPUTE_NODES) -> None:
        super().__init__("k8s", nodes)
        self.kubeconfig = self.directory / "admin.conf"
        self.defined: set[programs.Module] = set()
        """Modules whose kinds the server serves."""
        self.env = {"PATH": programs.path(), "KUBECONFIG": str(self.kubeconfig)}

    def __enter__(self) -> KubernetesOnRack:
        try:
            self.rack.start()
            self._write()
            self._start_control_plane()
            for name in self.names:
                self.start_daemon_of(name)
            self.start_switch()
            self.await_ready()
        except BaseException:
            self.close()
            raise
        return self

    @property
    def server(self) -> str:
        return f"https://{self.login.address}:443"

    def kubectl(self, *argv: str, check: bool = True, **options: Any) -> str:
        """Output of kubectl, run as the cluster's administrator; a failure fails the test."""
        done = self.run("kubectl", f"--kubeconfig={self.kubeconfig}", *argv, **options)
        if check:
            assert done.returncode == 0, f"kubectl {argv}: {done.stdout}{done.stderr}"
        return done.stdout

    def get(self, *argv: str) -> Any:
        return json.loads(self.kubectl("get", "-o", "json", *argv))

    def own(self, name: str) -> Path:
        return self.directory / name

    def _write(self) -> None:
        secret = os.urandom(16).hex()
        tokens = [f'{secret},{ADMIN},1,"system:masters"']
        authority = self.directory / "pki" / "apiserver.crt"
        self.kubeconfig.write_text(node_files.kubeconfig(self.server, authority, secret))
        node_files.write_image(
            self.directory / "pause.tar",
            node_files.PAUSE_IMAGE,
            program=programs.ours("pause"),
        )
        node_files.write_image(
            self.directory / "host.tar",
            node_files.HOST_IMAGE,
            folders=["usr", "etc", "proc", "sys", "dev", "tmp", "root", "var", "run", "home"],
            links=[(name, f"usr/{name}") for name in ("bin", "lib", "lib64", "sbin")],
        )
        for index, node in enumerate(self.computes):
            token = os.urandom(16).hex()
            tokens.append(f'{token},system:node:{node.name},n{index},"system:masters"')
            own = self.own(node.name)
            group = self._make_group(node.name)
            node_files.write(own, node.address, f"10.244.{index}.0/24", group)
            (own / "kubeconfig").write_text(node_files.kubeconfig(self.server, authority, token))
        (self.directory / "tokens.csv").write_text("\n".join(tokens) + "\n")
        subprocess.run(
            ["openssl", "genrsa", "-out", str(self.directory / "sa.key"), "2048"],
            check=True, capture_output=True,
        )  # fmt: skip

    def _make_group(self, name: str) -> str:
        """Create the cgroup of a node's pods; the rack's cleanup finds it by its name."""
        group = f"{GROUP_PREFIX}{self.rack.daemon_pid}-{name}-pods"
        for hierarchy in cgroups.hierarchies():
            (hierarchy / group).mkdir(exist_ok=True)
            for file in ("cpuset.cpus", "cpuset.mems"):
                if (hierarchy / file).exists():
                    (hierarchy / group / file).write_text((hierarchy / file).read_text())
        return f"/{group}"

    def _start_control_plane(self) -> None:
        d, login = self.directory, self.login
        client, peer = ETCD, "http://127.0.0.1:2380"
        self.run("ip", "addr", "add", f"{SERVICE}/32", "dev", "lo")
        self.run("ip", "link", "set", "lo", "up")
        for index, node in enumerate(self.computes):
            self.run("ip", "route", "add", f"10.244.{index}.0/24", "via", node.address)
        self.start_daemon(
            "etcd", login,
            ["etcd", "--data-dir", f"{d}/etcd", "--listen-client-urls", client,
             "--advertise-client-urls", client, "--listen-peer-urls", peer],
        )  # fmt: skip
        self.start_api_server()
        self.await_that((d / "pki" / "apiserver.crt").exists, 60, "API server up")
        # The controllers exit if it is not ready within 10 s, as on a busy machine.
        self.await_that(self.answers, 60, "API server ready")
        own = [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false"]
        self.start_daemon(
            "scheduler",
            login,
            ["kube-scheduler", *own, "--feature-gates=GenericWorkload=true"],
        )
        self.start_controllers()

    def start_controllers(self, silent_s: int = 12) -> None:
        """silent_s: time without a heartbeat after which a node is not Ready."""
        d = self.directory
        self.start_daemon(
            "controllers", self.login,
            ["kube-controller-manager", f"--kubeconfig={self.kubeconfig}", "--leader-elect=false",
             f"--service-account-private-key-file={d}/sa.key",
             f"--root-ca-file={d}/pki/apiserver.crt",
             "--use-service-account-credentials=false", "--feature-gates=GenericWorkload=true",
             f"--node-monitor-grace-period={silent_s}s", "--node-monitor-period=2s"],
        )  # fmt: skip

    def start_api_server(self) -> None:
        d, client = self.directory, ETCD
        self.start_daemon(
            "apiserver", self.login,
            ["kube-apiserver", f"--etcd-servers={client}", f"--cert-dir={d}/pki",
             "--secure-port=443", f"--advertise-address={self.login.address}",
             "--service-cluster-ip-range=10.96.0.0/16",
             "--service-account-issuer=https://mnode",
             f"--service-account-signing-key-file={d}/sa.key",
             f"--service-account-key-file={d}/sa.key",
             f"--token-auth-file={d}/tokens.csv", "--authorization-mode=RBAC",
             "--allow-privileged=true", "--kubelet-preferred-address-types=InternalIP",
             "--runtime-config=api/all=true",
             "--feature-gates=GenericWorkload=true"],
        )  # fmt: skip

    def answers(self) -> bool:
        argv = ("kubectl", f"--kubeconfig={self.kubeconfig}", "get", "--raw", "/readyz")
        return self.run(*argv).returncode == 0

    def start_daemon_of(self, name: str) -> None:
        """Start containerd, then the kubelet."""
        node, own = self.node(name), self.own(name)
        script = node_files.prepare_script(own)
        for index, other in enumerate(self.computes):
            if other.name != name:
                script += f"ip route add 10.244.{index}.0/24 via {other.address}\n"
        script += f"ip route add {SERVICE}/32 via {self.login.address}\n"
        done = self.run("sh", "-c", script, on=name)
        assert done.returncode == 0, f"{name}: {done.stderr}"
        self.start_daemon(
            f"containerd-{name}",
            node,
            # Pods get its limits, which are those of systemd.
            ["prlimit", f"--memlock={8 << 20}:", "containerd", "-c", f"{own}/containerd.toml"],
        )
        ctr = ["ctr", "-a", f"{own}/containerd.sock"]
        self.await_that(
            lambda: self.run(*ctr, "version", on=name).returncode == 0, 30, "containerd"
        )
        for image in ("pause", "host"):
            done = self.run(
                *ctr, "-n", "k8s.io", "images", "import", f"{self.directory}/{image}.tar", on=name
            )
            assert done.returncode == 0, f"{name}: {done.stderr}"
        self.start_kubelet(name)

    def start_kubelet(self, name: str) -> None:
        """Start the kubelet, also after it was killed: pods keep running without it."""
        node, own = self.node(name), self.own(name)
        self.start_daemon(
            name, node,
            ["kubelet", f"--config={own}/kubelet.yaml", f"--kubeconfig={own}/kubeconfig",
             f"--root-dir={own}/kubelet", f"--cert-dir={own}/pki", f"--hostname-override={name}",
             f"--node-ip={node.address}"],
        )  # fmt: skip

    def pods_mounts(self) -> dict[str, str]:
        """Folders that pods mount for Python, torch and this project, by volume name."""
        folders = {"usr": "/usr", "etc": "/etc", "python": sys.base_prefix, "env": sys.prefix}
        folders["project"] = str(Path(__file__).parents[3])
        return folders

    def pod(self, name: str, script: str, **spec: Any) -> dict[str, Any]:
        """A pod's manifest that runs a shell script with this machine's programs."""
        mounts = self.pods_mounts()
        container = {
            "name": "main",
            "image": node_files.HOST_IMAGE,
            "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", script],
            "volumeMounts": [{"name": n, "mountPath": p} for n, p in mounts.items()],
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "enableServiceLinks": False,
                "containers": [container],
                "volumes": [{"name": n, "hostPath": {"path": p}} for n, p in mounts.items()],
                **spec,
            },
        }

    def launch(self, directory: Path, **spec: Any) -> list[str]:
        """pytest options of a run in pods with this machine's programs. spec: a pod's."""
        template = directory / "pods.json"
        pod = self.pod("unnamed", "true", **spec)
        pod["spec"]["volumes"].append({"name": "tests", "hostPath": {"path": str(directory)}})
        [container] = pod["spec"]["containers"]
        container["volumeMounts"].append({"name": "tests", "mountPath": str(directory)})
        template.write_text(json.dumps(pod))
        return [
            "--mnode-launcher=kubernetes",
            "--mnode-k8s-context=bed",
            f"--mnode-k8s-template={template}",
            f"--mnode-python={sys.executable}",
        ]

    def apply(self, *manifests: dict[str, Any], server_side: bool = False) -> None:
        """Create objects as administrator. server_side: needed for very large objects."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
        path = self.directory / "manifests.json"
        path.write_text(text)
        self.kubectl("apply", *(["--server-side"] if server_side else []), "-f", str(path))

    def await_ready(self, limit_s: float = UP_LIMIT_S) -> float:
        """Wait until every node is Ready and pods can be created; seconds it took."""

        def ready() -> bool:
            nodes = [n for n in self.get("nodes")["items"] if n["metadata"]["name"] in self.names]
            if len(nodes) < len(self.names) or not all(
                is_ready(n) and takes_pods(n) for n in nodes
            ):
                return False
            # Pods need the service account, which is created a little later.
            return bool(self.get("serviceaccounts")["items"])

        return self.await_that(ready, limit_s, "all nodes Ready")


def on_nodes(*names: str) -> dict[str, Any]:
    """The affinity of pods that may run on these nodes only."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(names)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [here]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def is_ready(found: dict[str, Any]) -> bool:
    """Whether a node or a pod is Ready."""
    return is_true(conditions(found), "Ready")


def takes_pods(node: dict[str, Any]) -> bool:
    """Whether a node accepts pods: its taints are removed some time after it is Ready again."""
    taints = node["spec"].get("taints", [])
    return not any(taint["key"].startswith("node.kubernetes.io/") for taint in taints)


@pytest.fixture(scope="session")
def bed() -> Iterator[KubernetesOnRack]:
    """One Kubernetes for all tests that use it, which leaves nothing."""
    need_kubernetes()
    with KubernetesOnRack() as bed:
        groups = f"{GROUP_PREFIX}{bed.rack.daemon_pid}-*"
        yield bed
    assert not bed.directory.exists()
    assert [group for h in cgroups.hierarchies() for group in h.glob(groups)] == []
