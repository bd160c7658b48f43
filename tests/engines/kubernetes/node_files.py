"""Configuration files of a node: containerd, kubelet and network."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

from tests.engines.kubernetes.programs import CNI

PAUSE_IMAGE = "localhost/pause:1"
HOST_IMAGE = "localhost/host:1"
"""Empty folders: a pod mounts this machine's programs and libraries into them."""

CONTAINERD = """\
version = 3
root = "{own}/containerd/root"
state = "{own}/containerd/state"
disabled_plugins = [
  "io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
]
[grpc]
  address = "{own}/containerd.sock"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{pause}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  disable_apparmor = true
[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = "runc"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  SystemdCgroup = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{cni}"]
  conf_dir = "{own}/cni"
"""

KUBELET = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://{own}/containerd.sock
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
address: {address}
cgroupDriver: cgroupfs
cgroupRoot: {cgroup}
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
protectKernelDefaults: true
resolvConf: {own}/resolv.conf
podLogsDir: {own}/log/pods
volumePluginDir: {own}/plugins
evictionHard: {{memory.available: "50Mi", nodefs.available: "1%", imagefs.available: "1%"}}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
nodeStatusUpdateFrequency: 2s
nodeStatusReportFrequency: 10s
nodeLeaseDurationSeconds: 8
syncFrequency: 10s
localStorageCapacityIsolation: false
serializeImagePulls: false
registerWithTaints: []
"""

SYSCTLS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
"""Kernel settings that the kubelet requires, shown so that it does not change the machine."""

PREPARE = """\
set -e
mkdir -p {own}/log/pods {own}/plugins {own}/lib/kubelet {own}/lib/cni {own}/sysctl {own}/kubelet
for d in kubelet cni; do mkdir -p /var/lib/$d; mount --bind {own}/lib/$d /var/lib/$d; done
mount -t tmpfs none /run; mkdir -p /run/lock
{sysctls}
sysctl -qw net.ipv4.ip_forward=1
"""


def prepare_script(own: Path) -> str:
    """A shell script that prepares a node for containerd and the kubelet."""
    lines = [
        f"echo {value} >{own}/sysctl/{name.replace('/', '.')}; "
        f"mount --bind {own}/sysctl/{name.replace('/', '.')} /proc/sys/{name}"
        for name, value in SYSCTLS.items()
    ]
    return PREPARE.format(own=own, sysctls="\n".join(lines))


def write(own: Path, address: str, pods: str, cgroup: str) -> None:
    """Write a node's configuration into its directory.

    address: of the node; pods: subnet of its pods, such as 10.244.0.0/24.
    """
    (own / "cni").mkdir(parents=True)
    (own / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    text = CONTAINERD.format(own=own, pause=PAUSE_IMAGE, cni=CNI)
    (own / "containerd.toml").write_text(text)
    (own / "kubelet.yaml").write_text(KUBELET.format(own=own, address=address, cgroup=cgroup))
    ipam = {"type": "host-local", "dataDir": f"{own}/ipam", "ranges": [[{"subnet": pods}]],
            "routes": [{"dst": "0.0.0.0/0"}]}  # fmt: skip
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "ipam": ipam}
    conflist = {"cniVersion": "0.3.1", "name": "pods", "plugins": [bridge]}
    (own / "cni" / "10.conflist").write_text(json.dumps(conflist))


def kubeconfig(server: str, authority: Path, token: str, namespace: str = "default") -> str:
    """Text of a kubeconfig with one context, `bed`."""
    cluster = {"server": server, "certificate-authority": str(authority)}
    context = {"cluster": "bed", "user": "bed", "namespace": namespace}
    return json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "bed",
        "clusters": [{"name": "bed", "cluster": cluster}],
        "users": [{"name": "bed", "user": {"token": token}}],
        "contexts": [{"name": "bed", "context": context}],
    })  # fmt: skip


def write_image(
    archive: Path,
    name: str,
    *,
    program: Path | None = None,
    folders: Sequence[str] = (),
    links: Sequence[tuple[str, str]] = (),
) -> None:
    """Write an image of one layer in the form that `ctr images import` reads."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for folder in folders:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        for link, target in links:
            entry = tarfile.TarInfo(link)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
        if program is not None:
            entry = tarfile.TarInfo(program.name)
            entry.mode, entry.size = 0o755, program.stat().st_size
            with program.open("rb") as data:
                tar.addfile(entry, data)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Entrypoint": [f"/{program.name}"] if program else None,
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        for path, content in (
            ("config.json", json.dumps(config).encode()),
            ("layer.tar", layer.getvalue()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
