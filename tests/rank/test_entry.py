"""Before a fork: fewer handlers of torch's loggers, and no plugins with loops of their own. In a
rank: NCCL's log."""

from __future__ import annotations

import pickle
import sys
from functools import partial
from pathlib import Path
from unittest.mock import Mock
from xml.etree.ElementTree import Element

import pytest

from pytest_mnode.agent import fork_server
from pytest_mnode.errors import WorldError
from pytest_mnode.protocol.channel import Pipe
from pytest_mnode.protocol.messages import AgentOrder
from pytest_mnode.rank import binding, entry, exit_handlers
from tests import warm
from tests.inner import clean_env

LOGGERS = """
import logging, torch.distributed, torch._logging
from pytest_mnode.rank import entry

def apart():
    known = map(logging.getLogger, logging.root.manager.loggerDict)
    return sum(not log.propagate for log in known)

before = apart()
entry._share_torch_handler()
assert apart() < before / 2, (before, apart())
logging.basicConfig(stream=sys.stdout)
for name in ("torch", "torch.distributed", "torch.distributed.fsdp"):
    logging.getLogger(name).warning("of %s", name)
    logging.getLogger(name).info("too low")
torch._logging.set_logs(distributed=logging.INFO)
logging.getLogger("torch.distributed").info("asked for")
"""


def test_loggers_of_torch_print_once_as_before(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys\n" + LOGGERS)
    argv = [sys.executable, "-m", "program"]
    status, output = warm.run(argv, tmp_path, clean_env(), 120)
    assert status == 0, output
    names = ("torch", "torch.distributed", "torch.distributed.fsdp")
    lines = [line.rpartition("] ")[2] for line in output.splitlines()]
    assert lines == [*(f"of {name}" for name in names), "asked for"]


def test_torch_is_prepared_before_the_forks_or_why_it_is_not_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    steps = ((exit_handlers, "disown"), (entry, "prepare"), (binding, "memories"))
    for module, step in steps:
        monkeypatch.setattr(module, step, partial(done.append, step))
    monkeypatch.setattr(fork_server, "import_modules", lambda: done.append("imports"))
    server = fork_server.ForkServer(AgentOrder(0, "", ""), Pipe.pair()[0])
    server.import_torch()
    assert done == ["imports", "disown", "prepare", "memories"]
    broken = Mock(side_effect=ImportError("libnccl.so.2: cannot open shared object file"))
    monkeypatch.setattr(fork_server, "import_modules", broken)
    with pytest.raises(WorldError, match=r"torch cannot be imported by .*: libnccl\.so"):
        server.import_torch()
    server.agent.close()


class Loop:
    def pytest_runtest_protocol(self) -> None: ...


class LoopWithFixture(Loop):
    @pytest.fixture
    def its_own(self) -> None: ...


def test_of_plugins_with_their_own_loop_only_those_with_fixtures_are_kept(
    pytester: pytest.Pytester,
) -> None:
    manager = (config := pytester.parseconfig()).pluginmanager
    manager.register(Loop(), "loop")
    manager.register(LoopWithFixture(), "loop with fixture")
    entry._without_other_loops(config)
    assert not manager.has_plugin("loop")
    assert manager.has_plugin("loop with fixture")


def test_options_of_other_modules_wait_until_plugins_are_imported() -> None:
    """Their modules may be of plugins and conftest.py files."""
    given = {"path": Path("x"), "tree": Element("a"), "exit": pytest.ExitCode.OK}
    plain, others = entry._loaded({name: pickle.dumps(one) for name, one in given.items()})
    assert plain.keys() == {"path", "tree"}
    assert plain["path"] == given["path"]
    assert pickle.loads(others["exit"]) is given["exit"]


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"])
def test_the_users_settings_of_nccls_log_stay(name: str) -> None:
    environ = {name: "user's"}
    entry.have_nccl_log(environ, Path("/run/nccl"))
    ours = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,GRAPH",
        "NCCL_DEBUG_FILE": "/run/nccl",
    }
    assert environ == {**ours, name: "user's"}
