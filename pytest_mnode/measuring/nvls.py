"""Whether NCCL lets the switches of NVLink reduce in these ranks."""

from __future__ import annotations

import os

from pytest_mnode.logs.lines import plain_lines
from pytest_mnode.logs.nccl_files import log_of_process, settings_of_files
from pytest_mnode.logs.nvls import NvlsFacts, release
from pytest_mnode.machine.software import nccl_version
from pytest_mnode.measuring.ranks import gathered
from pytest_mnode.spec.alpha_beta import Nvls


def nvls_of_ranks(*, across: bool) -> Nvls:
    """What the settings, the release and the log of all ranks say; the same on every rank.

    across: over several NVLink domains. All ranks call this after their first use of NCCL, which
    writes the log. One rank without it is enough for NCCL to do without it everywhere.
    """
    files = {name: value for name, (value, _) in settings_of_files(os.environ).items()}
    settings = files | dict(os.environ)
    log = log_of_process(settings.get("NCCL_DEBUG_FILE", "")) or b""
    facts = NvlsFacts(settings, release(nccl_version() or "")).with_log(plain_lines(log))
    every = gathered(facts.used(across=across))
    return next((one for used in (False, None) for one in every if one.used is used), every[0])
