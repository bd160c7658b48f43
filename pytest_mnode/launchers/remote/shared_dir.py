"""A directory that all nodes see: a new one below the user's directory, or below the tests' root.

Every node reports the content of a file in it; a node that cannot read the file does not see it.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path

from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.launchers.remote.node_report import NodeReport


class SharedDir:
    """A candidate for the shared directory, until `settle` decides.

    given: the user's directory; None to use `root`, if that is writable.
    """

    def __init__(self, given: Path | None, root: Path) -> None:
        self.given = given
        self.directory: Path | None = None
        self.secret = uuid.uuid4().hex
        try:
            if given is not None:
                given.mkdir(parents=True, exist_ok=True)
            self.directory = Path(tempfile.mkdtemp(prefix=".mnode-", dir=given or root))
            self.token.write_text(self.secret)
        except OSError as error:  # over a quota, directories can be made but no files written
            self.remove()
            if given is not None:
                raise UsageError(f"--mnode-shared-dir={given}: {error.strerror}") from None

    @property
    def token(self) -> Path:
        """The file whose content nodes report."""
        return (self.directory or Path("/dev/null")) / "token"

    def seen_by(self, report: NodeReport) -> bool:
        """Whether the node of this report sees the directory."""
        return self.directory is not None and report.token == self.secret

    def settle(self, reports: Mapping[str, NodeReport]) -> Path | None:
        """The directory if all these nodes see it; otherwise removes it and returns None.

        Raises ClusterError if the user named it and some nodes do not see it.
        """
        blind = [name for name, report in reports.items() if not self.seen_by(report)]
        if not blind:
            return self.directory
        self.remove()
        if self.given is not None:
            raise ClusterError(
                f"--mnode-shared-dir={self.given}: {', '.join(blind)} "
                f"{'does' if len(blind) == 1 else 'do'} not see what this machine writes there"
            )
        return None

    def remove(self) -> None:
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = None
