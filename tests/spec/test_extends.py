"""Pages that extend others: what they become, and which file an error names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_mnode.certificate.run_facts import facts_of
from pytest_mnode.commands import main
from pytest_mnode.errors import SpecError
from pytest_mnode.spec import default_spec_path, load_spec, profile_spec
from pytest_mnode.spec.profiles import profile_names

Pages = Callable[[dict[str, str]], Path]


@pytest.fixture
def pages(tmp_path: Path) -> Pages:
    """Writes pages by name, beside a copy of the rack's; the path of the last."""

    def write(texts: dict[str, str]) -> Path:
        (tmp_path / "base.yaml").write_text(default_spec_path().read_text())
        for name, text in texts.items():
            (tmp_path / name).write_text(text)
        return tmp_path / list(texts)[-1]

    return write


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        ({"a.yaml": "extends: base.yaml\nname: a"}, {"name": "a", "fabric.mtu": 1500}),
        ({"a.yaml": "extends: rack\nfabric: {mtu: 9000}"}, {"fabric.mtu": 9000, "name": "rack"}),
        (  # mappings merge at every depth
            {"a.yaml": "extends: rack\ncriteria: {devices: {matmul: {size: 256}}}"},
            {
                "criteria.devices.matmul.size": 256,
                "criteria.devices.matmul.dtypes": ["float32"],
                "criteria.devices.memory_copy.size": 32 << 20,
            },
        ),
        (  # lists and scalars replace
            {"a.yaml": "extends: rack\nemulated: [x]"},
            {"emulated": ["x"]},
        ),
        (  # a range takes the place of a list, and merges with a range
            {
                "a.yaml": "extends: rack\ncriteria: {fabric: {all_reduce_busbw: {sizes: "
                "{from: 1 MiB, to: 4 MiB, factor: 4}}}}",
                "b.yaml": "extends: a.yaml\ncriteria: {fabric: {all_reduce_busbw: {sizes: "
                "{factor: 2}}}}",
            },
            {"criteria.fabric.all_reduce_busbw.sizes": [1 << 20, 2 << 20, 4 << 20]},
        ),
        ({"a.yaml": "extends: rack\nmanagement: null"}, {"management": None}),
        (  # what one removes, a later one may set
            {
                "a.yaml": "extends: rack\nmanagement: null",
                "b.yaml": "extends: a.yaml\nmanagement: {interfaces: [x], line_rate: 1 Gbit/s}",
            },
            {"management.interfaces": ["x"], "management.mtu": None},
        ),
        (  # of a list of bases, the later one wins, and the page itself over both
            {
                "one.yaml": "extends: base.yaml\nname: one\nfabric: {mtu: 2000}\nmanagement: null",
                "two.yaml": "name: two\nfabric: {nics_per_node: 2}\nnodes: 2",
                "a.yaml": "extends: [one.yaml, two.yaml]\nnodes: 3",
            },
            {
                "name": "two",
                "fabric.mtu": 2000,
                "fabric.nics_per_node": 2,
                "nodes": 3,
                "management": None,
            },
        ),
    ],
)
def test_later_keys_win_and_sections_merge(
    pages: Pages, texts: dict[str, str], values: dict[str, Any]
) -> None:
    spec = load_spec(pages(texts))
    page = spec.model_dump(mode="json", by_alias=True)
    for key, value in values.items():
        found: Any = page
        for part in key.split("."):
            found = found[part]
        assert found == value, key


@pytest.mark.parametrize(
    ("texts", "file", "message"),
    [
        ({"a.yaml": "extends: rakc"}, "a.yaml", "extends: 'rakc': unknown profile; did you mean"),
        ({"a.yaml": "extends: x.yaml"}, "a.yaml", "extends: 'x.yaml': no such file; "),
        ({"a.yaml": "extends: {name: rack}"}, "a.yaml", "extends: {'name': 'rack'}; "),
        ({"a.yaml": "extends:"}, "a.yaml", "extends: None; "),
        ({"a.yaml": "extends: []"}, "a.yaml", "extends: []; "),
        ({"a.yaml": "extends: a.yaml"}, "a.yaml", "extends: 'a.yaml': extends itself; "),
        (
            {"b.yaml": "extends: [rack, a.yaml]", "a.yaml": "extends: b.yaml"},
            "b.yaml",
            "extends: 'a.yaml': extends itself; ",
        ),
        (
            {"0.yaml": "name: x"} | {f"{i}.yaml": f"extends: {i - 1}.yaml" for i in range(1, 10)},
            "1.yaml",
            "extends: '0.yaml': more than 8 pages extend one another; ",
        ),
    ],
)
def test_what_cannot_be_extended_is_one_line_that_lists_the_profiles(
    pages: Pages, texts: dict[str, str], file: str, message: str
) -> None:
    path = pages(texts)
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    line = str(caught.value)
    assert line.startswith(f"{path.with_name(file)}: {message}")
    assert line.isprintable()
    assert all(name in line for name in profile_names())


@pytest.mark.parametrize(
    ("texts", "file", "message"),
    [
        ({"a.yaml": "extends: base.yaml\nfabric: {mtu: x}"}, "a.yaml", "fabric.mtu: 'x'"),
        ({"a.yaml": "extends: base.yaml\nfabric: {mtuu: 9000}"}, "a.yaml", "fabric.mtuu: unknown"),
        (
            {
                "b.yaml": "extends: base.yaml\nfabric: {interfaces: [a, 1]}",
                "a.yaml": "extends: b.yaml",
            },
            "b.yaml",
            "fabric.interfaces[1]: 1",
        ),
        (
            {
                "b.yaml": "fabric: {line_rate: 9}\n",
                "a.yaml": "extends: [base.yaml, b.yaml]\nfabric: {mtu: 9000}",
            },
            "b.yaml",
            "fabric.line_rate: 9 has no unit",
        ),
        (  # a key that the base does not set cannot be removed
            {"a.yaml": "extends: base.yaml\nstorage: null"},
            "a.yaml",
            "storage: no value",
        ),
        ({"a.yaml": "extends: base.yaml\nfabric: null"}, "a.yaml", "fabric: missing"),
        ({"a.yaml": "extends: base.yaml\nfabric: {mtu: null}"}, "a.yaml", "fabric.mtu: missing"),
        (  # what a page removed is of nobody once another page has the section again
            {
                "b.yaml": "fabric: null",
                "a.yaml": "extends: [base.yaml, b.yaml]\nfabric: {kind: ethernet}",
            },
            "a.yaml",
            "fabric.",
        ),
        ({"a.yaml": "extends: base.yaml\nfabric: &x {y: *x}"}, "a.yaml", "nested too deep"),
        (
            {"b.yaml": "name: [", "a.yaml": "extends: b.yaml"},
            "b.yaml",
            "line 1, column 8: not YAML",
        ),
    ],
)
def test_an_error_names_the_file_in_which_the_key_stands(
    pages: Pages, texts: dict[str, str], file: str, message: str
) -> None:
    path = pages(texts)
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert str(caught.value).startswith(f"{path.with_name(file)}: {message}")


def test_a_certificate_keeps_the_merged_page_and_its_digest(pages: Pages) -> None:
    path = pages({"a.yaml": "extends: base.yaml\nfabric: {mtu: 9000}"})
    whole = path.with_name("whole.yaml")
    whole.write_text(
        default_spec_path().read_text().replace("mtu: 1500\n\nman", "mtu: 9000\n\nman")
    )
    one, other = facts_of(load_spec(path), path), facts_of(load_spec(whole), whole)
    assert one.digest == other.digest
    assert one.page == other.page
    assert set(one.given or ()) == set(other.given or ())
    assert one.digest != profile_spec("rack").digest()


def test_a_profile_is_found_by_name_wherever_a_spec_is_asked_for(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load_spec(Path("profile:H100_IB")) == load_spec(
        default_spec_path().with_name("h100-ib.yaml")
    )
    assert main(["expect", "--spec=profile:h100-ib", "--nodes=4"]) == 0
    assert main(["expect", "--spec=profile:h100", "--nodes=4"]) == 2
    error = capsys.readouterr().err
    assert "profile:h100: unknown profile 'h100'; did you mean h100-" in error
    assert all(name in error for name in profile_names())
    result = pytester.runpytest("--mnode-spec=profile:h100-ib", "--mnode-nodes=99")
    result.stderr.fnmatch_lines(["ERROR: --mnode-nodes=99: profile:h100-ib says nodes: 16; *"])
    result = pytester.runpytest("--mnode-spec=profile:x")
    result.stderr.fnmatch_lines(["ERROR: profile:x: unknown profile 'x'; accepted: a100-ib, *"])


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("extends: rack\nfabric: {mtu: 9000}\nmanagement: null", True),
        ("extends: [rack, ./more.yaml]\nnodes: 4", True),
        ("extends: rack\nnodez: 4", False),
        ("extends: []", False),
        ("fabric: {mtu: 9000}", False),
    ],
)
def test_the_schema_knows_overlays(validator: Any, text: str, valid: bool) -> None:
    assert validator.is_valid(yaml.safe_load(text)) == valid
