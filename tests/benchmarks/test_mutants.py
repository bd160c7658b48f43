"""Mutations change what a program does, and not its words; each is tried on the tests near it."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

import pytest

from benchmarks.mutants.__main__ import explained_survivors
from benchmarks.mutants.nearest import nearest_tests
from benchmarks.mutants.operators import Mutation, mutations
from benchmarks.mutants.trial import BrokenCopyError, Copy
from tests.inner import need_rack, write_files

ROOT = Path(__file__).resolve().parents[2]
MODULE = """\
calls = 0
def larger(a, b):
    global calls
    calls += 1
    while True:
        break
    return max(a, b)
"""


def changes(source: str) -> set[tuple[str, str]]:
    """Operator and new lines of all mutations of a module, without the lines that stay."""
    text = textwrap.dedent(source).lstrip()
    found = set()
    for mutation in mutations("m.py", text):
        assert mutation.apply(text) != text
        new = [x[1:] for x in mutation.changed(text).splitlines() if x[0] == "+"]
        found.add((mutation.operator, "; ".join(new)))
    return found


@pytest.mark.parametrize(
    ("source", "operator", "new"),
    [
        ("x = a < b", "comparison", "x = (a <= b)"),
        ("x = a == b", "comparison", "x = (a != b)"),
        ("x = time.monotonic() > end", "comparison", "x = (time.monotonic() < end)"),
        ("x = now > end", "comparison", "x = (now < end)"),
        ("x = a and b", "and, or", "x = (a or b)"),
        ("x = not a", "not", "x = a"),
        ("x = min(a)", "min, max", "x = max(a)"),
        ("x = any(a)", "any, all", "x = all(a)"),
        ("x = a + b", "arithmetic", "x = (a - b)"),
        ("WAIT_S = 5.0", "limit", "WAIT_S = (5.0 * 1000)"),
        ("wait(timeout=5)", "limit", "wait(timeout=(5 * 1000))"),
        ("def f(limit_s=5): go()", "limit", "def f(limit_s=(5 * 1000)): go()"),
        ("def f(x=False): go()", "default", "def f(x=True): go()"),
        ("def f(): return x", "return", "def f(): return None"),
        ("file.close()", "clean-up", "pass"),
        ("go()", "statement", "pass"),
        ("raise E('words')", "statement", "pass"),
        ("for x in y: break", "loop", "for x in y: continue"),
        ("try: go()\nexcept E: again()", "handler", "except E: raise"),
        ("x = a[0]", "first, last", "x = a[-1]"),
        ("d[k] = v", "first wins", "d[k] = d.get(k) or v"),
        ("n += 1", "added", "n = 1"),
        ("if a: go()", "condition", "if (not a): go()"),
    ],
)
def test_what_is_mutated(source: str, operator: str, new: str) -> None:
    assert (operator, new) in changes(source)


def test_words_annotations_and_invariants_stay() -> None:
    source = '''
        """A module: 1 + 1."""
        if TYPE_CHECKING:
            x = 1 + 1
        assert a < b
        y = f"{a + b}"
        print(a + b)
        class C(Protocol):
            x: int = 1 + 1
        WAIT_S = 0.0
        def g(seed=0): return None
        class D:
            def __repr__(self) -> str:
                return a + b
    '''
    assert changes(source) == set()


def test_each_explained_survivor_is_still_a_mutation() -> None:
    """A line that has changed leaves its explanation behind."""
    stale = []
    for path, changed in explained_survivors():
        source = (ROOT / path).read_text()
        if changed not in {found.changed(source) for found in mutations(path, source)}:
            stale.append((path, changed))
    assert stale == []


def test_a_function_without_a_value_returns_early() -> None:
    source = "def f() -> None:\n    x = 1\n    y = 1\n"
    assert ("early return", "return") in changes(source)


def test_the_nearest_tests_come_first(tmp_path: Path) -> None:
    """Named after the module, then of its room, and others that import it; none of engines."""
    module = "pytest_mnode/jobs/slurm/files.py"
    imports = "from pytest_mnode.jobs.slurm import files"
    files = {module: "", "tests/jobs/test_slurm_files.py": "", "tests/test_other.py": imports}
    files |= {"pytest_mnode/jobs/slurm/__init__.py": "", "tests/jobs/test_running.py": ""}
    files |= {"tests/engines/test_jobs.py": imports, "tests/spec/test_load.py": ""}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    first, *others = nearest_tests(tmp_path, module)
    assert first == "tests/jobs/test_slurm_files.py"
    assert set(others) == {"tests/jobs/test_running.py", "tests/test_other.py"}
    assert nearest_tests(tmp_path, "pytest_mnode/jobs/slurm/__init__.py")[0] == first


def test_of_a_part_of_the_engine_the_whole_is_tried_early(tmp_path: Path) -> None:
    near = [f"tests/controller/test_{name}.py" for name in ("leases", "agents", "pool")]
    for name in ("pytest_mnode/controller/leases.py", *near, "tests/worlds/test_worlds.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("from pytest_mnode.controller import leases")
    found = nearest_tests(tmp_path, "pytest_mnode/controller/leases.py")
    assert found == [near[0], "tests/worlds/test_worlds.py", *near[1:]]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A copy of a project with one module and three tests, of which the first fails anyway."""
    need_rack()
    directory = tmp_path_factory.mktemp("copy")
    project = directory / "project"
    write = f"pathlib.Path({str(project)!r}, 'new').touch()"
    tests = """
        import m, pathlib
        def test_anyway(): assert False
        def test_larger(): assert m.larger(1, 2) == 2
        def test_the_project_cannot_be_changed():
            try: WRITE
            except OSError: return
            assert False
    """
    project.mkdir()
    write_files(project, m=MODULE, test_m=tests.replace("WRITE", write))
    # Each trial starts pytest, which is all that these tests need.
    plain = "".join(f" -p no:{plugin}" for plugin in ("mnode", "hypothesispytest", "xdist"))
    (project / "pytest.ini").write_text(f"[pytest]\naddopts ={plain}\n")
    for words in ("init", "--quiet"), ("add", "."):
        subprocess.run(["git", *words], cwd=project, check=True)
    return Copy(project, directory, 0, 60.0)


def mutation(operator: str) -> Mutation:
    [found] = [m for m in mutations("m.py", MODULE) if m.operator == operator]
    return found


def test_a_mutation_is_caught_by_a_test_that_passes_without_it(copy: Copy) -> None:
    outcome = copy.try_out(mutation("min, max"), ["test_m.py"], 60)
    assert outcome.by == "test_m.py::test_larger"


def test_a_mutation_that_no_test_sees_survives(copy: Copy) -> None:
    outcome = copy.try_out(mutation("added"), ["test_m.py"], 60)
    assert (outcome.by, outcome.finished) == ("", True)


def test_a_mutation_that_never_ends_is_caught(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy, "test_limit_s", 2.0)
    assert copy.try_out(mutation("loop"), ["test_m.py"], 60).by == "test_m.py::test_larger"


def test_tests_that_are_not_there_catch_nothing(copy: Copy) -> None:
    with pytest.raises(BrokenCopyError, match=r"test_none\.py"):
        copy.try_out(mutation("min, max"), ["test_none.py"], 60)
