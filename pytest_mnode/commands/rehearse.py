"""Rehearse a whole night on a virtual cluster of a spec's platform: what would it find?

Values are drawn from models of the platform, with the spread of healthy parts and, if you give
some, with faults; the suite's own rules judge them. Nothing is measured, and nothing is certified:
every face of the report says rehearsal. The exit status is 0 if no promise is broken, else 1.
"""

from __future__ import annotations

import argparse
import gc
import shutil
from pathlib import Path

from pytest_mnode.commands.asked import report_into

MOST_NODES = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--spec", type=Path, help="the cluster's page; default: the rack's")
    parser.add_argument("--nodes", type=int, help="default: those of the spec, else 4")
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="NAME[:WHERE][=STRENGTH]",
        help="such as slow_nic:node3:mlx5_2 or slow_gpu:node1:0=0.8; may be given again",
    )
    parser.add_argument("--seed", type=int, default=0, help="of all noise; default: %(default)s")
    parser.add_argument("--report", type=Path, help="a directory to write the report into")
    parser.add_argument("--faults", action="store_true", help="list all faults, and do nothing")


def run(options: argparse.Namespace) -> int:
    from pytest_mnode.certificate import CertificateVerdict, summary_lines
    from pytest_mnode.errors import UsageError
    from pytest_mnode.spec import default_spec_path, load_spec
    from pytest_mnode.virtual.faults import FAULTS, form_of
    from pytest_mnode.virtual.night import rehearse

    if options.faults:
        width = max(len(form_of(name)) for name in FAULTS)
        for name, fault in FAULTS.items():
            print(f"{form_of(name):{width}}  {fault.text}")
        return 0
    path = options.spec or default_spec_path()
    spec = load_spec(path)
    nodes = options.nodes if options.nodes is not None else spec.nodes or 4
    if not 1 <= nodes <= MOST_NODES:
        raise UsageError(f"--nodes={nodes}: accepted: 1 to {MOST_NODES}")
    if options.seed < 0:
        raise UsageError(f"--seed={options.seed}: accepted: 0 or more")
    gc.disable()  # values live until the end; to look for garbage takes a fifth of the time
    try:
        certificate = rehearse(spec, path, nodes, faults=options.fault, seed=options.seed)
    finally:
        gc.enable()
    for line in summary_lines(certificate, shutil.get_terminal_size().columns):
        print(line)
    report_into(options.report, certificate)
    return 0 if certificate.verdict is CertificateVerdict.REHEARSAL else 1
