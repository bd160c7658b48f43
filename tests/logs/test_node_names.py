"""Nodes by the names of files: a culprit is never an option of dmesg, a date or a device."""

from __future__ import annotations

import pytest

from pytest_mnode.logs.node_names import node_in, node_of_kernel_log


@pytest.mark.parametrize(
    ("file", "node"),
    [
        *(("elm4-dmesg-T.txt", "elm4"), ("dmesg-T-elm4.txt", "elm4"), ("dmesg-T", "")),
        *(("elm4.nvidia-smi-q.log", "elm4"), ("nvidia-smi-q.txt", ""), ("ibstat_mlx5_0", "")),
        *(("before/dmesg", ""), ("dmesg-after-reboot.txt", ""), ("elm4-dmesg-before.txt", "elm4")),
        *(("elm4/dmesg-2026-10-03.txt", "elm4"), ("2026-10-03/dmesg", ""), ("dmesg-all.txt", "")),
        *(("dmesg_elm4_2026-10-03T08-15-00.log", "elm4"), ("journal-88", ""), ("job-88/dmesg", "")),
        *(("worker-0/dmesg", "worker-0"), ("node/dmesg", ""), ("node-3-dmesg.txt", "node-3")),
        *(("elm4-dmesg-nvrm.txt", "elm4"), ("elm-b.dmesg.txt", "elm-b"), ("b/dmesg", "b")),
        *(("nvidia-smi-topo-m.txt", ""), ("nvidia-smi/elm4.txt", "elm4"), ("train.log", None)),
        *(("dmesg-oom.txt", ""), ("journalctl-slurmd.log", ""), ("nvidia-smi-dmon.txt", "")),
        *(("train_console.log", ""), ("monday/dmesg", ""), ("user1/dmesg", "")),
        *(("cluster-a-n3-dmesg.txt", "cluster-a-n3"), ("b-node1-dmesg.txt", "b-node1")),
        ("ip-10-0-1-6.ec2.internal.dmesg.txt", "ip-10-0-1-6"),
    ],
)
def test_the_node_of_a_kernel_log(file: str, node: str | None) -> None:
    assert node_of_kernel_log(file) == node


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("elm4-link", "elm4"),
        *(("elm4-routes", "elm4"), ("elm4.site.internal", "elm4"), ("row4-elm4", "row4-elm4")),
        *(
            ("wed", ""),
            ("Monday", ""),
            ("oct3", ""),
            ("counters-t2", ""),
            ("elm4-t2", "elm4"),
            ("mon-elm4", "elm4"),
        ),
        *(("sun01", "sun01"), ("T", "")),
        *(("smi12", ""), ("q05", "q05"), ("2026-10-03", "")),
        ("plugin-elm4", "elm4"),
        ("elm-b", "elm-b"),
        *((name, name) for name in ("cluster-a-n3", "a-node1", "new-gpu3", "net-elm4")),
        ("ip-10-0-1-6.ec2.internal", "ip-10-0-1-6"),
        *((name, "") for name in ("slurm-883", "day3", "local_rank0", "r0", "numa3", "v2")),
        ("rank_3", ""),
        ("eth0", ""),
    ],
)
def test_the_node_in_any_name(name: str, node: str) -> None:
    assert node_in(name) == node
