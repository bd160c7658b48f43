"""A directory that all nodes see: one of our own below the one that was named, or below the tests.

Whether it is seen is found out by a file in it that every node is asked for.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path

from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.launchers.remote.looking import Look


class Shared:
    """A candidate, until `settle` says what it is worth.

    given: what the user named, None where nothing; root: used then, where it can be written.
    """

    def __init__(self, given: Path | None, root: Path) -> None:
        self.given = given
        self.directory: Path | None = None
        try:
            if given is not None:
                given.mkdir(parents=True, exist_ok=True)
            made = tempfile.mkdtemp(prefix=".mnode-", dir=given or root)
        except OSError as error:
            if given is not None:
                raise UsageError(f"--mnode-shared-dir={given}: {error.strerror}") from None
            return
        self.directory = Path(made)
        self.secret = uuid.uuid4().hex
        self.token.write_text(self.secret)

    @property
    def token(self) -> Path:
        """The file that nodes are asked for."""
        return (self.directory or Path("/dev/null")) / "token"

    def seen_by(self, look: Look) -> bool:
        """Whether a node sees it."""
        return self.directory is not None and look.token == self.secret

    def settle(self, looks: Mapping[str, Look]) -> Path | None:
        """The directory, where all these nodes see it; else None, and it is removed.

        Raises ClusterError where the user named it and nodes do not see it.
        """
        blind = [name for name, look in looks.items() if not self.seen_by(look)]
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
        """Take it away, with all that is in it."""
        if self.directory is not None:
            with contextlib.suppress(OSError):
                shutil.rmtree(self.directory)
            self.directory = None
