from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
from pydantic import ValidationError

from pytest_mnode.spec import Spec, default_spec_path, load_spec
from pytest_mnode.spec.alpha_beta import Algorithm, CollectiveModel, Platform
from pytest_mnode.spec.inventory import Accelerators
from pytest_mnode.spec.load import read_model
from tests.spec.conftest import Load, busbw_of, preflight_of


@pytest.fixture(scope="module")
def rack() -> Spec:
    return load_spec(default_spec_path())


def test_the_racks_promise_is_converted_to_base_units(rack: Spec) -> None:
    assert (rack.name, rack.nodes, rack.accelerators.per_node) == ("rack", None, 0)
    assert rack.emulated
    fabric, management = rack.fabric, rack.management
    assert (fabric.kind, fabric.interfaces, fabric.nics_per_node) == ("ethernet", ("fab0",), 1)
    assert (fabric.line_rate_bits_s, fabric.line_rate_mbits_s) == (200_000_000, 200.0)
    assert (fabric.line_rate_gbits_s, fabric.mtu_bytes) == (0.2, 1500)
    assert management is not None
    assert (management.interfaces, management.line_rate_mbits_s) == (("mgmt0",), 20.0)
    assert rack.certificate.valid_for_s == 7 * 86400


def gloo(spec: Spec) -> CollectiveModel:
    return CollectiveModel(Platform.of(spec), "all_reduce", 4, 1, "gloo")


def test_the_racks_bound_is_in_gigabytes_with_its_source(rack: Spec) -> None:
    promise, model = busbw_of(rack), gloo(rack)
    bound = promise.bound_gbytes_s(model, (Algorithm.RING,), 4 << 20)
    # steps of TCP take 1.2 per mille of a call
    line = 0.2 / 8 * promise.at_least_fraction
    assert 0.998 * line < bound.limit < line
    assert bound.tolerance == 0
    source = promise.source(model, (Algorithm.RING,), 4 << 20)
    assert source.startswith("ring by the model: 0.02497 GB/s with fabric.line_rate 200 Mbit/s")
    assert source.endswith(f"× at_least_fraction {promise.at_least_fraction:g}")
    assert promise.judged_sizes_bytes(model) == (4 << 20,)


@pytest.mark.parametrize(
    ("domain", "nodes", "bytes_s"),
    [
        ({}, 1, None),
        ({"domain": {"gpus": 72, "bandwidth": "900 GB/s"}}, 18, 900 * 10**9),
        ({"domain": {"gpus": 4}}, 1, None),
    ],
)
def test_a_domain_may_have_several_nodes(
    domain: dict[str, object], nodes: int, bytes_s: int | None
) -> None:
    found = Accelerators.model_validate({"per_node": 4} | domain)
    assert found.nodes_of_a_domain == nodes
    assert (found.domain.bandwidth_bytes_s if found.domain else None) == bytes_s


def test_a_bound_counts_every_nic_and_the_tolerance(load: Load) -> None:
    spec = load("nics_per_node: 1", "nics_per_node: 8")
    promise = busbw_of(spec)
    bound = promise.bound_gbytes_s(gloo(spec), (Algorithm.RING,), 1 << 40)
    assert bound.limit == pytest.approx(8 * 0.2 / 8 * promise.at_least_fraction, rel=1e-4)
    spec = load("tolerance_fraction: 0", "tolerance_fraction: 0.1")
    bound = busbw_of(spec).bound_gbytes_s(gloo(spec), (Algorithm.RING,), 1 << 40)
    assert bound.tolerance == pytest.approx(0.2 / 8 * 0.1, rel=1e-4)


@pytest.mark.parametrize(
    ("written", "judged_kib"),
    [
        ("plateau_from: 1 MiB", (1024, 4096)),
        ("repeats: 5", (1024, 4096)),  # left out: six steps of 50 µs, 95 kB
    ],
)
def test_sizes_are_judged_from_the_knee_on(
    load: Load, written: str, judged_kib: tuple[int, ...]
) -> None:
    spec = load("plateau_from: 4 MiB\n      warmup: 2\n      repeats: 5", written)
    found = busbw_of(spec).judged_sizes_bytes(gloo(spec))
    assert tuple(size >> 10 for size in found) == judged_kib


@pytest.mark.parametrize(
    ("written", "sizes_kib"),
    [
        ("{from: 512 KiB, to: 4 MiB}", (512, 1024, 2048, 4096)),
        ("{from: 64 KiB, to: 4 MiB, factor: 8}", (64, 512, 4096)),
        ("{from: 64 KiB, to: 4 MiB, factor: 10}", (64, 640, 4096)),
        ("{from: 4 MiB, to: 4 MiB}", (4096,)),
        ("[64 KiB, 4 MiB]", (64, 4096)),
    ],
)
def test_sizes_are_a_list_or_a_range(load: Load, written: str, sizes_kib: tuple[int, ...]) -> None:
    promise = busbw_of(load("[64 KiB, 1 MiB, 4 MiB]", written))
    assert promise.sizes_bytes == tuple(size << 10 for size in sizes_kib)


def test_a_range_promises_what_its_list_does(load: Load) -> None:
    as_list, as_range = (
        load("[64 KiB, 1 MiB, 4 MiB]", written)
        for written in ("[2 MiB, 4 MiB]", "{from: 2 MiB, to: 4 MiB}")
    )
    assert as_list.digest() == as_range.digest()


def test_each_collective_has_its_own_promise(rack: Spec) -> None:
    fabric = rack.criteria.fabric
    assert fabric is not None
    assert fabric.busbw("all_gather") == fabric.all_gather_busbw
    assert all(
        fabric.busbw(name)
        for name in ("all_reduce", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
    )
    assert fabric.busbw("gather") is None
    with pytest.raises(ValidationError, match="promises nothing; accepted: all_reduce_busbw, all_"):
        type(fabric).model_validate({})
    alone = type(fabric).model_validate({"broadcast_busbw": fabric.broadcast_busbw})
    assert alone.busbw("all_reduce") is None


def test_only_written_keys_are_promised(load: Load, rack: Spec) -> None:
    assert rack.promised("mesh")
    assert not rack.promised("gang")
    spec = load("  mesh: {}\n", "")
    assert spec.promised("fabric")
    assert set(rack.promised_criteria) - set(spec.promised_criteria) == {"mesh"}
    assert not spec.promised("mesh")


@pytest.mark.parametrize(
    ("interfaces", "name", "has"),
    [
        ("[fab0]", "fab0", True),
        ("[fab0]", "fab01", False),
        ("['mlx5_*']", "mlx5_3", True),
        ("['mlx5_[0-3]', eth1]", "mlx5_4", False),
        ("['mlx5_[0-3]', eth1]", "eth1", True),
        ("['FAB*']", "fab0", False),
    ],
)
def test_interfaces_are_names_or_patterns(
    load: Load, interfaces: str, name: str, has: bool
) -> None:
    assert load("[fab0]", interfaces).fabric.has_interface(name) is has


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("name: rack\n", "name:   'rack' # written otherwise\n", True),
        ("200 Mbit/s", "0.2 Gbit/s", True),
        ("      repeats: 5\n", "", False),  # the default, but it was promised
        ("200 Mbit/s", "201 Mbit/s", False),
        ("  mesh: {}\n", "", False),
        ("reason: the rack has no scheduler", "reason: nobody asked", False),
    ],
)
def test_the_digest_depends_on_the_promise_not_on_its_spelling(
    load: Load, rack: Spec, old: str, new: str, same: bool
) -> None:
    digest = load(old, new).digest()
    assert len(digest) == 64
    assert (digest == rack.digest()) is same


def test_an_upgrade_that_adds_a_key_or_changes_a_default_changes_no_digest(rack: Spec) -> None:
    class Newer(Spec):
        watts: int | None = 300
        nodes: int | None = 8  # by default None

    newer = read_model(default_spec_path(), Newer)
    assert (newer.nodes, newer.digest()) == (8, rack.digest())
    assert newer.model_copy(update={"watts": 700}).digest() != rack.digest()


def test_a_spec_is_frozen_and_can_be_pickled(rack: Spec) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        setattr(rack.fabric, "mtu_bytes", 9000)  # noqa: B010
    copy = pickle.loads(pickle.dumps(rack))
    assert copy == rack
    assert copy.digest() == rack.digest()


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        (
            "import pytest_mnode.spec.bandwidth; from pytest_mnode.spec import default_spec_path",
            ("pydantic", "yaml", "torch"),
        ),
        (
            "from pytest_mnode.spec import *; load_spec(default_spec_path()); json_schema()",
            ("torch",),
        ),
    ],
)
def test_loading_a_spec_imports_only_needed_modules(
    statement: str, absent: tuple[str, ...]
) -> None:
    check = f"{statement}\nimport sys\nprint(*(set({absent!r}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == []


def test_the_order_of_scheduler_names_has_no_effect(load: Load) -> None:
    one, two = "partition: gpu", "account: x"
    scheduler = "name: rack\nscheduler: {{kind: slurm, names: {{{}, {}}}}}"
    digests = {load("name: rack", scheduler.format(*n)).digest() for n in ((one, two), (two, one))}
    assert len(digests) == 1


@pytest.mark.parametrize(("written", "state"), [("on", "on"), ('"on"', "on"), ("Off", "off")])
def test_on_and_off_need_no_quotes(load: Load, written: str, state: str) -> None:
    spec = load("  preflight:\n", f"  preflight:\n    accelerators: {{ecc: {written}}}\n")
    accelerators = preflight_of(spec).accelerators
    assert accelerators is not None
    assert accelerators.ecc == state
