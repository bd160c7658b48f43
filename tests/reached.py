"""Which tests can the files changed since a commit reach?

`python -m tests.reached` compares the working tree with the last commit that passed all tests, and
prints a line of test files for each stage of continuous integration, or ALL. Whatever is unsure
runs all: no such commit, other versions of installed packages, a module removed, a file of unknown
use.

A file uses what it imports, also inside functions; modules it names in its text, such as programs
of `-m`; data that it names, or whose folder it names. To declare a use that none of these shows, a
test names the module in a comment. A test that starts pytest uses the plugin, and of the rooms that
the plugin imports inside functions those that the test's text mentions. Tests of the costly stages
all do, and so would use everything: they use what they import themselves, and of what that imports
in turn the rooms that their stage is about.
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path, PurePosixPath

import grimp

from tests.cleanup_steps import steps

ROOT = Path(__file__).parents[1]
PASSED = "CI_PASSED"
"""Variable: the file that keeps the last commit that passed all, if not in the user's cache."""
EVERYTHING = "CI_ALL"
"""Variable: 1 runs all tests."""
ALL = "ALL"

STAGES = {
    "red": "tests/acceptance/",
    "engines": "tests/engines/",
    "machines": "tests/machines/",
    "gpu": "tests/gpu/",
    "test": "tests/",
}
"""Folder of each stage's tests. A test belongs to the first that matches."""
ABOUT = {
    stage: re.compile(rf"(?!pytest_mnode/)|pytest_mnode/(?:{rooms})[/.]")
    for stage, rooms in {
        "red": "checks|criteria|evidence|faults|gang|machine|measuring|reference_job|spec",
        "engines": "agent|backends|cluster|controller|discover|env_reads|fixtures|gang|jobs"
        "|launchers|limits|machine|outcome|plugin|protocol|rank|report_record",
        "machines": "checks|criteria|evidence|launchers|machine|measuring|spec",
    }.items()
}
"""Rooms that the tests of costly stages are about. A change elsewhere is held by the many tests of
its own room, and by all tests once all are due, MOST_DAYS after they last ran."""
MOST_DAYS = 7.0
WHOLE = frozenset(
    {
        "tests/engines/kubernetes/test_whole.py",
        "tests/engines/test_rack_whole.py",
        "tests/engines/test_whole.py",
    }
)
"""The whole acceptance suite on an engine: only if all tests run, or if one of these changed."""
ALWAYS = re.compile(
    r"^tests/(?!engines/|machines/|gpu/).*(clean_?up|leaves_nothing|left_b|terminated)"
)
"""Tests that nothing is left behind are never left out: these files, and those of cleanup_steps."""
UNUSED = frozenset({"CHANGELOG.md"})
"""Files that no test depends on."""
COMMON = re.compile(
    r"(\.ci/|Makefile|pyproject\.toml|\.git\w+|(tests/)?conftest\.py|tests/(__init__|again|reached|red)\.py"
    r"|tests/(frameworks|libraries|plugins)\.txt)"
)
"""Files that all tests depend on, or that choose them."""

# Rooms that the core imports inside functions, and words without which no run comes to them.
ROOMS = {
    "pytest_mnode/discover/": "discover",
    "pytest_mnode/faults/": "(?<!de)fault",
    "pytest_mnode/gang/": "gang|slurm|salloc|sbatch|srun|kube|k8s|pods?",
    "pytest_mnode/jobs/kubernetes/": "kube|k8s|pods?",
    "pytest_mnode/jobs/slurm/": "slurm|salloc|sbatch|srun",
    "pytest_mnode/launchers/kubernetes/": "kube|k8s|pods?",
    "pytest_mnode/launchers/slurm/": "slurm|salloc|sbatch|srun",
    "pytest_mnode/launchers/ssh.py": "ssh|hostfile",
}
_TOPS = ("pytest_mnode", "tests", "acceptance", "benchmarks")
_FOLDERS = (*_TOPS, "docs", "fixtures", ".ci")
_PROGRAM = re.compile(r"[\"'](pytest_mnode(?:\.\w+)+)")
_ENTRY = re.compile(r"[\"'](pytest_mnode(?:\.\w+)+):\w+[\"']")
"""Modules that are imported once a name of them is asked for."""
_DOTTED = re.compile(rf"\b(?:{'|'.join(_TOPS)})(?:\.\w+)+")
_FROM = re.compile(r"\bfrom\s+([\w.]+)\s+import\s+(\([^)]*\)|[^\n]*)")
_NAMED = re.compile(r"(?<=[\"'/`(])[\w.-]+(?=[\"'/:`)])")
_STARTS_PYTEST = re.compile(r"[\"'/]pytest[\"']|-m pytest|\bpytester\b")
PLUGIN = "pytest_mnode/plugin.py"
CATALOGUE, _CHECKS = "pytest_mnode/evidence/check.py", "pytest_mnode/checks/node/"
"""What imports all checks of a folder, whatever their names."""
_SHELVES = ("docs", "fixtures")
RUNS_SUITE = "tests/acceptance/certified.py"

Condition = Callable[[frozenset[str]], bool]
"""Whether a test uses something, by the files whose text tells what it does, itself included."""


@dataclass
class Uses:
    """What each file uses, by paths from the root of the repository.

    maybe: what a file uses only for tests that meet a condition.
    """

    files: frozenset[str]
    certain: dict[str, set[str]] = field(default_factory=dict)
    maybe: dict[str, list[tuple[str, Condition]]] = field(default_factory=dict)

    def add(self, user: str, used: Iterable[str]) -> None:
        self.certain.setdefault(user, set()).update(set(used) - {user})

    @functools.cached_property
    def tests(self) -> list[str]:
        return sorted(f for f in self.files if is_test(f))

    @functools.cached_property
    def tests_by_use(self) -> Mapping[str, set[str]]:
        """Tests that changes of each file reach."""
        found: dict[str, set[str]] = {}
        for test in self.tests:
            for used in self.of(test):
                found.setdefault(used, set()).add(test)
        return found

    def of(self, test: str) -> set[str]:
        """All that a test uses, itself included; of a costly test, what it is about."""
        about = ABOUT.get(stage_of(test), re.compile(""))
        found, new = {test}, [test]
        held: list[tuple[str, str, Condition]] = []
        while new:
            while new:
                file = new.pop()
                held += [(file, used, meets) for used, meets in self.maybe.get(file, [])]
                used = self.certain.get(file, set()) - found
                more = {one for one in used if _counts(one, file, about)}
                found |= more
                new += more
            told = frozenset(file for file in found if _is_told(file))
            met = {meets for meets in {meets for *_, meets in held} if meets(told)}
            free = {u for f, u, meets in held if meets in met and _counts(u, f, about)} - found
            found |= free
            new += free
        return found


def stage_of(test: str) -> str:
    return next(stage for stage, folder in STAGES.items() if test.startswith(folder))


def _counts(used: str, user: str, about: re.Pattern[str]) -> bool:
    """Whether the tests that are about some rooms run when a file changed that another uses."""
    return about.match(used) is not None or not user.startswith("pytest_mnode/")


def is_test(file: str) -> bool:
    path = PurePosixPath(file)
    return path.parts[0] == "tests" and path.name.startswith("test_") and path.suffix == ".py"


def _is_told(file: str) -> bool:
    """Whether a file's text tells what a test does that uses it.

    A conftest serves all tests of its folder, and who runs the suite names the files of it.
    """
    folders = ("tests/", "acceptance/", "benchmarks/", "docs/")
    return file.startswith(folders) and not file.endswith(("/conftest.py", RUNS_SUITE))


@functools.cache
def read(file: str) -> str:
    try:
        return (ROOT / file).read_text(encoding="utf-8")
    except (UnicodeDecodeError, FileNotFoundError):
        return ""


def git(*argv: str) -> str:
    """Output of git; CalledProcessError if it fails."""
    run = ["git", "-C", str(ROOT), *argv]
    return subprocess.run(run, check=True, capture_output=True, text=True).stdout


def tracked() -> frozenset[str]:
    """Files of the repository; without git those of its folders."""
    try:
        listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    except (OSError, subprocess.CalledProcessError):
        tops = [top for top in ROOT.iterdir() if top.is_file() or top.name in _FOLDERS]
        below = [file for top in tops for file in (top, *top.rglob("*"))]
        listed = [str(file.relative_to(ROOT)) for file in below if "__pycache__" not in file.parts]
    return frozenset(file for file in listed if file and (ROOT / file).is_file())


def uses(files: frozenset[str]) -> Uses:
    """The graph of all files."""
    found = Uses(files)
    python = {file for file in files if file.endswith(".py") and file.split("/")[0] in _TOPS}
    modules = {_module(file): file for file in python}
    homes = _homes()
    _add_imports(found, modules)
    for file in python:
        folder = PurePosixPath(file).parent
        around = [folder, *folder.parents]
        found.add(file, {f"{one}/__init__.py" for one in around} & files)
        if is_test(file):
            found.add(file, {f"{one}/conftest.py" for one in around if str(one) != "."} & files)
        if file.endswith("/__init__.py") and "import_module" in read(file) and folder.parts[1:]:
            found.add(file, {other for other in python if other.startswith(f"{folder}/")})
    naming = _by_name(files)
    for file in files:
        if COMMON.match(file) or file.startswith("docs/"):
            continue
        text = read(file)
        if file.startswith("fixtures/") and file.endswith(".yaml"):
            text = re.sub("#.*", "", text)  # sources of its numbers name files of others
        if file in python and (file.startswith("pytest_mnode/") or file.endswith("/conftest.py")):
            dotted = set(_PROGRAM.findall(text)) if re.search(r"\"-[mp]\"", text) else set()
            _add_late(found, file, _modules_named(_ENTRY.findall(text), modules, homes))
        else:
            dotted = _dotted(text)
        found.add(file, _modules_named(dotted, modules, homes))
        if file == CATALOGUE:
            found.add(file, [one for one in python if one.startswith(_CHECKS)])
        if file.startswith(("tests/", "benchmarks/")) and _STARTS_PYTEST.search(text):
            found.add(file, [PLUGIN])
        named = _files_named(text, naming)
        if file == RUNS_SUITE:
            suite = {one for one in named if one.startswith("acceptance/test_")}
            found.maybe[file] = [(one, _runs(one)) for one in sorted(suite)]
            named -= suite
        if not _is_told(file):  # pages of docs, which users are told of, and suites they run
            named = {one for one in named if one.startswith(("pytest_mnode/", "fixtures/"))}
        found.add(file, named)
    return found


def _runs(file: str) -> Condition:
    """Whether a test runs this file of the acceptance suite."""
    return lambda told: any(file in _suite_of(test) for test in told if is_test(test))


@functools.cache
def _suite_of(test: str) -> frozenset[str]:
    """Files of the acceptance suite that a test runs: all, unless each of its runs names some."""
    text = read(test)
    suite = sorted(f"acceptance/{path.name}" for path in (ROOT / "acceptance").glob("test_*.py"))
    computed = re.search(r"\btest_\{", text) is not None
    named = {
        file
        for file in suite
        if re.search(rf"\b{(stem := PurePosixPath(file).stem)}\b", text)
        or (computed and re.search(rf"\b{stem.removeprefix('test_')}\b", text))
    }
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    whole = re.search(r"\bACCEPTANCE\)|\bcertify_whole\(", text) is not None or any(
        ast.unparse(call.func) == "certify" and "files" not in {word.arg for word in call.keywords}
        for call in calls
        if f"from {_module(RUNS_SUITE)} import" in text
    )
    runs_some = re.search(r"\bcertif\w*\(", text) is not None
    return frozenset(suite if whole or (runs_some and not named) else named)


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _homes() -> dict[str, str]:
    """Module of each public name of the package, which imports it on first use."""
    tree = ast.parse(read("pytest_mnode/__init__.py"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {a.name: str(node.module) for node in imports for a in node.names if node.module}


def _add_imports(found: Uses, modules: Mapping[str, str]) -> None:
    namespaces = {name.rpartition(".")[0] for name in modules} - modules.keys() - {""}
    graph = grimp.build_graph(
        *_TOPS, *sorted(namespaces), cache_dir=None, exclude_type_checking_imports=True
    )
    for module in graph.modules & modules.keys():
        file = modules[module]
        of_package, fixtures = file.startswith("pytest_mnode/"), file.endswith("/conftest.py")
        lazy = _in_functions(file) if of_package else set[int]()
        for name in graph.find_modules_directly_imported_by(module) & modules.keys():
            used = modules[name]
            if COMMON.match(file) and used.startswith("tests/warm/"):
                continue  # it starts tests of any kind, and is no part of what they test
            lines = graph.get_import_details(importer=module, imported=name)
            inside = all(line["line_number"] in lazy for line in lines)
            if fixtures and (names := _given_on(file, name)):
                found.maybe.setdefault(file, []).append((used, _mentions(rf"\b({names})\b")))
            elif inside and of_package:
                _add_late(found, file, [used])
            else:
                found.add(file, [used])


def _add_late(found: Uses, file: str, late: Iterable[str]) -> None:
    """What the package imports inside functions: of another room for tests that mention it."""
    for used in late:
        room = next((room for room in ROOMS if used.startswith(room)), None)
        if room and room not in file:
            found.maybe.setdefault(file, []).append((used, _mentions(ROOMS[room])))
        else:
            found.add(file, [used])


def inner(node: ast.AST) -> Iterator[ast.AST]:
    """Statements right inside one, found without its expressions, which are most of a tree."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        yield from getattr(node, name, ())


@functools.cache
def _in_functions(file: str) -> set[int]:
    """Lines of imports inside functions."""
    found = set()
    nodes: list[tuple[ast.AST, bool]] = [(ast.parse(read(file)), False)]
    while nodes:
        node, inside = nodes.pop()
        if inside and isinstance(node, (ast.Import, ast.ImportFrom)):
            found.add(node.lineno)
        inside |= isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        nodes += [(one, inside) for one in inner(node)]
    return found


@functools.cache
def _mentions(words: str) -> Condition:
    pattern = re.compile(words, re.IGNORECASE)
    one = functools.cache(lambda file: pattern.search(read(file)) is not None)
    return lambda told: any(one(file) for file in told)


def _given_on(conftest: str, module: str) -> str:
    """Fixtures of a module that a conftest only gives on, by its __all__, as a pattern."""
    tree = ast.parse(read(conftest))
    lists = [
        n.names for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == module
    ]
    names = {alias.name for aliases in lists for alias in aliases}
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    given = {
        name
        for node in assigned
        if ast.unparse(node.targets[0]) == "__all__"
        for name in ast.literal_eval(node.value)
    }
    return "|".join(sorted(names)) if names <= given else ""


def _dotted(text: str) -> set[str]:
    """Dotted names in a text, also in strings and comments."""
    names = set(_DOTTED.findall(text))
    for origin, imported in _FROM.findall(text):
        if origin.split(".")[0] in _TOPS:
            names.update(f"{origin}.{name}" for name in re.findall(r"\w+", imported))
    return names


def _modules_named(
    names: Iterable[str], modules: Mapping[str, str], homes: Mapping[str, str]
) -> set[str]:
    found = set()
    for name in names:
        top, _, rest = name.partition(".")
        if top == _TOPS[0] and rest.split(".")[0] in homes:
            found.add(modules[homes[rest.split(".")[0]]])
        parts = name.split(".")
        prefixes = (".".join(parts[:count]) for count in range(len(parts), 1, -1))
        known = next((prefix for prefix in prefixes if prefix in modules), "")
        found.update(modules[one] for one in (known, f"{known}.__main__") if one in modules)
    return found


def _by_name(files: Iterable[str]) -> dict[str, set[str]]:
    """Files by a word that names them: their own name, or that of a folder of data."""
    with_tests = {str(PurePosixPath(file).parent) for file in files if is_test(file)}
    found: dict[str, set[str]] = {}
    for file in files:
        path = PurePosixPath(file)
        if is_test(file):
            continue
        if path.name not in {"__init__.py", "__main__.py", "conftest.py"}:
            found.setdefault(path.name, set()).add(file)
        if path.parts[0] == "pytest_mnode":
            continue
        for folder in path.parents:
            if folder.name and str(folder) not in {"tests", "benchmarks", *with_tests}:
                found.setdefault(folder.name, set()).add(file)
    return found


def _files_named(text: str, by_name: Mapping[str, set[str]]) -> set[str]:
    """Files that a text names, or whose folder. After docs or fixtures, what the text goes on with.

    Folders of fixtures have names that mean other things elsewhere, such as "logs".
    """
    words = set(_NAMED.findall(text))
    named = {word: by_name[word] for word in words & by_name.keys()}
    found = {file for word, files in named.items() if word not in _SHELVES for file in files}
    for shelf in _SHELVES:
        on_shelf = {file for file in found if file.startswith(f"{shelf}/")}
        if shelf not in named:
            found -= {file for file in on_shelf if PurePosixPath(file).name not in words}
        elif not on_shelf:
            found |= named[shelf]
    return found


@dataclass(frozen=True)
class Plan:
    """Test files of each stage, and single tests; reason: why all tests run instead."""

    files: Mapping[str, Sequence[str]]
    reason: str | None = None

    def __str__(self) -> str:
        """A line for each stage: its name, and files or ALL."""
        chosen = {stage: [ALL] for stage in STAGES} if self.reason else self.files
        return "".join(f"{stage}: {' '.join(files)}\n" for stage, files in chosen.items())


def everything(reason: str) -> Plan:
    return Plan({}, reason)


def plan(changed: Iterable[str], graph: Uses) -> Plan:
    """What to run after these files changed, were added or were removed."""
    chosen = {test for test in graph.tests if ALWAYS.search(test)}
    for file in sorted(set(changed) - UNUSED):
        is_module = file.endswith(".py")
        if COMMON.match(file):
            return everything(f"{file} changed")
        if is_module and file not in graph.files:
            if is_test(file):
                continue
            return everything(f"{file} was removed")
        reached = graph.tests_by_use.get(file, set())
        if not reached and not (is_module and file.startswith("benchmarks/")):
            return everything(f"no test is known to use {file}")
        chosen |= reached
    chosen -= WHOLE - set(changed)
    found: dict[str, list[str]] = {stage: [] for stage in STAGES}
    for test in sorted(chosen):
        found[stage_of(test)].append(test)
    of_steps = sorted({f"tests/{step.test}" for step in steps()})
    found["test"] += [test for test in of_steps if test.partition("::")[0] not in chosen]
    return Plan(found)


def passed_file() -> Path:
    if named := os.environ.get(PASSED):
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "pytest-mnode", "passed.json")


@functools.cache
def environment() -> str:
    """Identifies the interpreter, the installed packages and the kernel."""
    packages = sorted(f"{d.name} {d.version}" for d in metadata.distributions())
    facts = "\n".join([platform.python_version(), platform.release(), *packages])
    return hashlib.sha256(facts.encode()).hexdigest()


def last_passed() -> tuple[str, str | None]:
    """The last commit that passed all tests, and why it cannot be built on, if so."""
    path = passed_file()
    try:
        kept = json.loads(path.read_text())
        commit, where = str(kept["commit"]), kept["environment"]
    except FileNotFoundError:
        return "", f"no commit passed all: {path} is not there"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return "", f"{path} cannot be read: {error!r}"
    if where != environment():
        return commit, "packages, Python or the kernel are others than when all passed"
    try:
        git("merge-base", "--is-ancestor", commit, "HEAD")
    except subprocess.CalledProcessError:
        return commit, f"{commit} passed all, and is not an ancestor of HEAD"
    days = (time.time() - path.stat().st_mtime) / 86_400
    if days > MOST_DAYS:
        return commit, f"{commit} passed all {days:.0f} days ago"
    return commit, None


def changed_since(commit: str) -> set[str]:
    """Files that differ from a commit, in the working tree too."""
    diff = git("diff", "--name-only", "--no-renames", "-z", commit)
    new = git("ls-files", "-z", "--others", "--exclude-standard")
    return {file for file in f"{diff}\0{new}".split("\0") if file}


def plan_here() -> Plan:
    if os.environ.get(EVERYTHING, "0") not in ("", "0"):
        return everything(f"{EVERYTHING} is set")
    commit, reason = last_passed()
    if reason:
        return everything(reason)
    try:
        changed = changed_since(commit)
    except subprocess.CalledProcessError as error:
        return everything(f"{error}: {error.stderr}")
    data = {file for file in changed if not file.endswith(".py")}
    return plan(changed, uses(tracked() | data))


def record(commit: str) -> None:
    """Keep a commit that passed all tests, unless the working tree is another by now."""
    head = git("rev-parse", "HEAD").strip()
    if head != commit or git("status", "--porcelain"):
        print(f"not kept as passed: the working tree is not {commit}")
        return
    path = passed_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"commit": commit, "environment": environment()}) + "\n")
    new.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.reached", description=__doc__)
    parser.add_argument("--passed", metavar="COMMIT", help="keep this commit: it passed all tests")
    given = parser.parse_args()
    if given.passed:
        record(given.passed)
        return
    made = plan_here()
    print(made, end="")
    if made.reason:
        print(f"all tests: {made.reason}", file=sys.stderr)


if __name__ == "__main__":
    main()
