"""docs/first-steps.md: its files and commands are run, and the output is compared."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import warm
from tests.inner import clean_env, command, need_rack, write_files
from tests.watched import Watch

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "first-steps.md"
_BLOCK = re.compile(r"^```(.*)\n((?:(?!```).*\n)*)```$", re.MULTILINE)
_FILE = re.compile(r"# (\w+\.\w+)\n")
_VARIES = (
    (r"\d+\.\d\ds( \(\d+:\d\d:\d\d\))?", "SECONDS"),
    (r"[\d.e-]+ % packets", "SOME % packets"),
    (r"={3,}|  +", "  "),
    (r"0x[0-9a-f]+", "ADDRESS"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "DATE"),
    (r'File ".*/torch/(.*)", line \d+', r'File "torch/\1"'),
    # torch warns about each connection on a machine without IPv6.
    (r"(?m)^(-+ Captured stderr setup \(rank \d+\) -+\n)?\[W\d+ .*\n", ""),
)
"""Text that differs between runs: pattern and replacement."""


@dataclass(frozen=True)
class Command:
    """A line after `$ `, and the lines below it on the page; `…` stands for any number of lines."""

    line: str
    shown: str


def blocks() -> tuple[dict[str, str], list[Command]]:
    """Files of the page by name, and its commands."""
    files, commands = {}, []
    for kind, text in _BLOCK.findall(PAGE.read_text()):
        if kind == "console":
            line, _, shown = text.removeprefix("$ ").partition("\n")
            commands.append(Command(line, shown))
        else:
            name = _FILE.match(text)
            assert name, f"neither a command nor a file:\n{text}"
            files[name[1]] = text
    return files, commands


def same(text: str) -> str:
    for pattern, word in _VARIES:
        text = re.sub(pattern, word, text)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def pattern(shown: str) -> str:
    lines = same(shown).splitlines(keepends=True)
    return "".join("(?:.*\n)*?" if line == "…\n" else re.escape(line) for line in lines)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's first command installs the package."""
    return tmp_path_factory.mktemp("site")


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory, site: Path) -> dict[str, str]:
    """Output of each command of the page, one after another in a temporary folder.

    Those that need an installed package are the shell's, and the others warm runs of the clone's.
    """
    need_rack()
    folder = tmp_path_factory.mktemp("first-steps")
    (folder / "pytest-mnode").symlink_to(ROOT)
    files, commands = blocks()
    for name, text in files.items():
        (folder / name).write_text(text)
    watch = Watch(site / "tmp")
    shown = {**clean_env(), "PYTEST_ADDOPTS": "-p no:hypothesispytest", "COLUMNS": "100"}
    env = {
        **shown,
        **watch.env,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        # Really installed, into a temporary place, with the dependencies of this environment. The
        # variable turns build isolation off: 0 means none.
        **{"PIP_TARGET": str(site), "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"},
        **{"PIP_NO_INDEX": "1", "PIP_NO_CACHE_DIR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        "PYTHONPATH": str(site),
    }
    found = {}
    for each in commands:
        program, *words = shlex.split(each.line)
        if program == "pytest" and "--pyargs" not in words:
            argv = [sys.executable, "-m", program, *words]
            _, found[each.line] = warm.run(argv, folder, shown | watch.env, 240)
            watch.expect_nothing_left()
            continue
        done = subprocess.run(
            ["sh", "-c", each.line],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        found[each.line] = done.stdout
        assert each.shown or done.returncode == 0, done.stdout
        watch.expect_nothing_left()
    return found


@pytest.mark.usefixtures("printed")
def test_the_installed_suite_is_the_clones_and_found_by_name(tmp_path: Path, site: Path) -> None:
    write_files(tmp_path, torch="raise ImportError")  # the controller imports none
    argv = command("--collect-only", "-q", "--mnode-nodes=2", "-p", "no:cacheprovider")
    done = subprocess.run(
        [*argv, "--pyargs", "pytest_mnode.acceptance"],
        cwd=tmp_path,
        env=clean_env() | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line]
    in_clone = {path.name: path.read_bytes() for path in (ROOT / "acceptance").glob("*.py")}
    tests = {name for name in in_clone if name.startswith("test_")}
    assert {Path(line).name for line in lines} == tests, done.stdout
    suite = site / "pytest_mnode/acceptance"
    assert {path.name: path.read_bytes() for path in suite.glob("*.py")} == in_clone


@pytest.mark.parametrize("command", [c for c in blocks()[1] if c.shown], ids=lambda c: c.line[:60])
def test_commands_print_what_the_page_shows(command: Command, printed: dict[str, str]) -> None:
    found = same(printed[command.line])
    assert re.fullmatch(pattern(command.shown), found), printed[command.line]


@pytest.mark.parametrize(
    ("shown", "fits"),
    [
        ("a\n…\nd in 2.00s\n", True),
        ("a\n…\nd in 2.00s\ne\n", False),
        ("a\nd in 1.00s\n", False),
        ("b\n…\n", False),
    ],
)
def test_a_page_that_is_wrong_is_found(shown: str, fits: bool) -> None:
    assert bool(re.fullmatch(pattern(shown), same("a\nb\nc\nd in 1.00s\n"))) is fits
