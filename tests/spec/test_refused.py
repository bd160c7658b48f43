"""Values that no spec can promise are refused with one line: key, value and accepted form."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.errors import SpecError
from tests.spec.conftest import changed

FRACTION = "at_least_fraction: 0.9"
REFUSED = [
    # devices
    ("devices", "{}", "promises nothing; accepted: matmul, training_step, repeated_products"),
    ("devices.matmul", "{}", "at_least_fraction: missing"),
    ("devices.matmul", "{at_least_fraction: 1.1}", "at_least_fraction: 1.1; accepted: a number of"),
    ("devices.matmul", "{at_least_fraction: 0}", "at_least_fraction: 0; accepted: a number above"),
    ("devices.matmul", f"{{{FRACTION}, dtypes: [int8]}}", "dtypes[0]: 'int8'; accepted: 'float64'"),
    ("devices.matmul", f"{{{FRACTION}, dtypes: []}}", "dtypes: []; accepted: a list of 1 or more"),
    (
        "devices.matmul",
        f"{{{FRACTION}, at_least_tflops: {{float16: 1.0}}}}",
        "at_least_tflops for float16, which is not measured; accepted: float32",
    ),
    ("devices.repeated_products", "{size: 50}", "size: 50; accepted: a multiple of 16"),
    ("devices.repeated_products", "{for: 60}", "60 has no unit"),
    ("devices.memory_copy", f"{{{FRACTION}, size: 64}}", "size: 64 has no unit"),
    ("devices.memory_copy", f"{{{FRACTION}, at_most_spreads: 0}}", "at_most_spreads: 0; accepted"),
    ("fabric.all_reduce_busbw.at_least_fraction", "89", "89; accepted: a number of 2 or less"),
    ("launch.absent", "{said_within: 3 s}", "absent: unknown key; accepted: torchrun, "),
    ("restart.refuses_damaged", "true", "refuses_damaged: unknown key; accepted: kills, "),
    ("fabric.write_bandwidth.at_least_fraction", "96", "96; accepted: a number of 1 or less"),
    ("preflight.kernel_log.since", "yesterday", "'yesterday'; accepted: boot, last_pass"),
    # numa
    ("numa.near", "nodes", "'nodes'; accepted: node, socket, or a {distance: 12} from 10 to 254"),
    ("numa.near", "{distance: 5}", "{'distance': 5}; accepted: node, socket, or a {distance: 12}"),
    ("numa.cpus", "far", "'far'; accepted: 'near'"),
    ("numa.memory_near_fraction", "90", "90; accepted: a number of 1 or less"),
    ("numa.copy_near_over_far", "0.5", "0.5; accepted: a number of 1 or more"),
    ("numa.nics", "nearest", "unknown key; did you mean nic?"),
    ("numa", "{copy_repeats: 3}", "promises nothing; accepted: at least one of cpus, "),
    # groups and data
    ("groups.meshes", "[{dp: rest, tp: rest}]", "[0]: {dp: rest, tp: rest} leaves two open; acc"),
    ("groups.meshes", "[{}]", "[0]: {}; accepted: sizes by name, such as {pp: 2, dp: rest, "),
    ("groups.meshes", "[]", "[]; accepted: a list of 1"),
    ("groups.meshes", "[{tp: 0}]", "[0]: tp: 0; accepted: a whole number of 1 or more, or rest"),
    ("groups.meshes", "[{tp: 2}, {2d: 2}]", "[1]: '2d' is no name of a dimension; accepted: "),
    ("groups.mesh", "[]", "unknown key; did you mean meshes"),
    ("groups.inside_node", "[tp, cp]", "inside_node has cp, which is in no mesh; accepted: pp, dp"),
    (
        "groups",
        "{meshes: [{dp: rest, ep: 2}], inside_node: [tp]}",
        "inside_node has tp, which is in no mesh; accepted: dp, ep",
    ),
    ("data.batch", "0", "0; accepted: a number of 1 or more"),
    ("data.samples_per_rank", "4", "4; accepted: a number of 16"),
    ("data.accumulation", "1.5", "1.5; accepted: a whole"),
    # launch
    ("launch", "{}", "promises nothing; accepted: torchrun, deepspeed, megatron"),
    ("launch", "{elsewhere: true}", "elsewhere promises nothing without a style"),
    ("launch.elsewhere", "false", "False; accepted: True"),
    ("launch.mpi", "{}", "unknown key"),
    ("launch.torchrun", "{within: 5}", "within: 5 has no unit; accepted: "),
    ("launch.torchrun", "{job: job.yaml}", "job: 'job.yaml'; accepted: an abs"),
    ("launch.rendezvous", "{ranks: 16}", "within: missing"),
    ("launch.rendezvous", "{ranks: 0, within: 1 s}", "ranks: 0; accepted: "),
    ("launch.store.clients", "[64, 64]", "[64, 64] does not rise; accepted: each number larger"),
    ("launch.store.clients", "[]", "[]; accepted: "),
    # scaling
    ("scaling.compute", "600", "600 has no unit; accepted: a time"),
    ("scaling.at_least_efficiency", "0.85", "explained_from 0.9 is above at_least_efficiency 0.85"),
    ("scaling.at_least_efficiency", "95", "95; accepted: a number of 1 or less"),
    ("scaling.allowed_causes", "[network]", "[0]: 'network'; accepted: 'communication', "),
    ("scaling.allowed_causes", "[skew, skew]", "allowed_causes lists one twice"),
    ("scaling.rounds", "11", "most_rounds 10 is below rounds 11"),
    ("scaling.model.width", "145", "width 145 over heads 2; accepted: a multiple of heads"),
    ("scaling.buckets", "1", "unknown key; did you mean"),
    # restart
    ("restart.within", "60", "60 has no unit"),
    ("restart.kills", "[]", "[]; accepted: a list of 1 or more"),
    ("restart.kills", "[rank, rank]", "kills lists one twice; accepted: each of rank, node,"),
    ("restart.kills", "[power]", "'rank', 'node', 'preemption' or 'checkpoint'"),
    ("restart.node_loss", "none", "'spare', 'fewer' or 'rebooted'"),
    ("restart", "{within: 60 s, node_loss: fewer}", "accepted: with resharded_tolerance"),
    ("restart.tolerance", "1.0", "1.0; accepted: a number below 1"),
    ("restart.tolerance", "-0.1", "-0.1; accepted: a number of 0 or more"),
    ("restart.resharded_tolerance", "0", "0; accepted: a number above 0"),
    ("restart.steps", "17", "17; accepted: a number of 18 or more"),
    ("restart.width", "30", "width 30; accepted: a multiple of 4"),
    ("restart.checkpoints", "1", "unknown key"),
    # gang
    ("gang.nodes", "1", "1; accepted: a number of 2 or more"),
    ("gang.among", "[node0]", "['node0']; accepted: a list of 2 or more"),
    ("gang.rounds", "0", "0; accepted: a number of 1 or more"),
    ("gang.waits", "30", "30 has no unit"),
    ("gang.settle", "0 s", "is zero"),
    ("gang.node_loss", "kept", "'either', 'requeued' or 'cancelled'"),
    ("gang.partial", "true", "unknown key"),
    ("gang", "{runs: 5 s, together: 5 s}", "together 5 s is no less than runs 5 s: ranks that"),
    ("gang.together", "1 h", "together 1 h is no less than runs 15 s"),
    ("gang.clock_skew", "1 h", "clock_skew 1 h is no less than runs 15 s: heartbeats would prove"),
    ("gang", "{nodes: 3, among: [a, b]}", "nodes 3 is more than the 2 nodes of among; accepted"),
    # preflight
    ("preflight.clocks", "{}", "skew: missing"),
    ("preflight.clocks.skew", "5", "5 has no unit"),
    ("preflight.same", "[kernal]", "[0]: 'kernal'; accepted: 'code'"),
    ("preflight.same", "[code, code]", "[code, code] lists one twice"),
    ("preflight.same", "[]", "[];"),
    ("preflight.reachable.networks", "[]", "[]; accepted"),
    ("preflight.reachable.master_port", "0", "0; accepted"),
    ("preflight.payload.size", "4", "4 has no unit"),
    ("preflight.speed.at_least_fraction", "1.1", "1.1; accepted"),
    ("preflight.environment.allowed", "[ib]", "[0]: 'ib'; accepted: a variable"),
    ("preflight.disk", "[{path: tmp, free: 1 GB}]", "[0].path: 'tmp'; accepted: an absolute path"),
    ("preflight.gpudirect", "maybe", "'maybe'; accepted"),
    ("preflight.limits.memlock", "5", "5"),
    ("preflight.limits.memlock", "-1", "criteria.preflight.limits.memlock: -1 has no unit"),
    ("preflight.limits.memlock", "infinity", "or unlimited"),
    ("preflight.pings", "{}", "unknown key"),
]


@pytest.mark.parametrize(("key", "value", "message"), REFUSED)
def test_impossible_values_are_refused_in_one_line(
    tmp_path: Path, key: str, value: str, message: str
) -> None:
    with pytest.raises(SpecError) as refused:
        changed(tmp_path, {f"criteria.{key}": value})
    text = str(refused.value)
    assert message in text
    assert f"criteria.{key.partition('.')[0]}" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accelerators.per_node": "8"}, "criteria: scaling.compute: 0.6 s"),
        ({"scheduler": "{kind: pbs}", "criteria.scaling": ""}, "scheduler.kind: 'pbs'"),
        ({"scheduler": "{kind: kubernetes}"}, "scheduler: kind kubernetes without engine;"),
        ({"scheduler": "{kind: kubernetes, engine: kueue}"}, "scheduler: engine kueue without"),
        (
            {"scheduler": "{kind: kubernetes, engine: native, names: {partition: gpu}}"},
            "scheduler: names: not with kind kubernetes; accepted: namespace, queue",
        ),
        ({"scheduler": "{kind: slurm, queue: gpu}"}, "scheduler: queue: not with kind slurm;"),
        (
            {"accelerators.per_node": "4", "accelerators.domain": "{gpus: 6}"},
            "accelerators.domain: gpus: 6 with accelerators.per_node 4; accepted: a multiple of",
        ),
        (
            {"accelerators.domain": "{gpus: 72, bandwidth: 900 Gbit/s}"},
            "domain.bandwidth: '900 Gbit/s' is in bits a second; accepted: bytes a second, such",
        ),
        ({"topology.sockets": "1"}, "topology.sockets: 1; accepted: a number of 2 or more"),
        ({"topology.fabric_socket": "2"}, "topology.fabric_socket: socket 2 of 2; accepted"),
        ({"topology.accelerator_sockets": "[0, 5]"}, "accelerator_sockets: socket 5 of 2"),
        ({"topology.accelerator_sockets": "[]"}, "topology.accelerator_sockets: []; accepted"),
    ],
)
def test_promises_beyond_the_cluster_are_refused(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(SpecError) as refused:
        changed(tmp_path, changes)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_gang_needs_a_scheduler(tmp_path: Path) -> None:
    assert changed(tmp_path, {"criteria.gang": "{}"}).promised("gang")
    with pytest.raises(SpecError, match=r"criteria: gang: promised without a scheduler; accepted"):
        changed(tmp_path, {"criteria": "{gang: {}}"})
