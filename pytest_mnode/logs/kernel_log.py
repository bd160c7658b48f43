"""Failing devices in the kernel log since boot, from /dev/kmsg, dmesg or the journal."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar

from pytest_mnode.logs.xids import Action, sxid, xid

LIMIT_S = 5.0
COMMANDS = (("dmesg",), ("journalctl", "-k", "-b", "--no-pager", "-o", "short-iso"))
_PCI = r"(?P<device>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)"
_HARDWARE = r"(?:mce: |\{\d+\})?\[Hardware Error\]: "
_CLOCK = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[\d.,]*(?:[+-]\d\d:?\d\d|Z)?"
_SYSLOG = r"\S{2,5} +\d+ \d\d:\d\d:\d\d(?:\.\d+)?"
"""The month in the words of any locale: "Jan", "kwi", "févr.", "3月"."""
_CALLER = r"(?:\[ *[TC]\d+\] ?)?"
"""Thread or CPU that wrote a line, printed by kernels with CONFIG_PRINTK_CALLER."""
_PREFIX = re.compile(
    r"(?:<\d+>|\w+ *:\w+ *: )?"  # dmesg --raw, dmesg --decode
    rf"(?:\[ *(?P<uptime>[^\]]+)\] ?|(?P<clock>{_CLOCK}|{_SYSLOG}) ){_CALLER}"
    # Another program's name stays in the text, so that no rule matches it.
    rf"(?:\S+ kernel: (?:\[ *\d+\.\d+\] ?)?{_CALLER})?"
    r"(?P<text>.*)"
)
_UPTIME = re.compile(r"\d+\.\d+(?=$| *<)")
_KMSG = re.compile(r"(?P<priority>\d+),\d+,(?P<us>\d+),[^;]*;(?P<text>.*)")


class Severity(StrEnum):
    """FAULT: a device failed or gave wrong data. CORRECTED: it corrected an error itself.

    LINK_DOWN: a link that had been up went down.
    """

    FAULT = "fault"
    CORRECTED = "corrected"
    LINK_DOWN = "link down"


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the kernel log about a failing device.

    when: as the log writes it. at_s: that time, in seconds since 1970; None if it is not known, as
    without year or zone. action: what an Xid or SXid asks for, by `Action`; "" if nothing.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid"}
    severity: Severity
    when: str
    device: str
    what: str
    at_s: float | None = None
    action: str = ""


@dataclass(frozen=True, slots=True)
class Log:
    """Events of a log, in its order.

    since: time of its oldest line, if older lines were overwritten; "" if the log begins with the
    boot.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid"}
    events: tuple[Event, ...]
    since: str = ""


_FAILED_PROBE = rf"(?:: probe of)? {_PCI}:?(?: probe(?: with driver \w+)?)? failed with error -\d+"
FAULTS: Mapping[str, tuple[str, ...]] = {
    "GPU lost": (
        rf"NVRM: GPU {_PCI}: (?:GPU has fallen off|RmInitAdapter fail)",
        # "fallen off the bus" is in the third line of this message. The one about a GPU that is not
        # supported goes on in its first line. /dev/kmsg writes a line end as \x0a.
        rf"NVRM: The NVIDIA GPU {_PCI}(?=$|\\)",
        rf"amdgpu {_PCI}: (?:amdgpu: )?(?:Fatal error during GPU init|device lost from bus)",
        rf"(?:nvidia|amdgpu){_FAILED_PROBE}",
    ),
    "GPU memory": (
        rf"amdgpu {_PCI}: (?:amdgpu: )?(?:.*\b[1-9]\d* (?:new )?uncorrectable hardware errors"
        r"|(?:\{\d+\})?uncorrectable hardware error\()",
    ),
    "GPU": (
        r"NVRM: \w+: uvm encountered global fatal error ",
        rf"amdgpu {_PCI}: (?:amdgpu: )?(?P<detail>GPU reset\(\d+\) failed"
        # Source 5 is a user who asked for it.
        r"|GPU reset begin!(?!.*Source: *5\b))",
    ),
    # The driver sets up the links of its GPUs; at its end it only says that it shuts them down.
    "NVLink": (r"NVRM: (?P<device>GPU\d+)? ?knvlink\w+: .*(?i:fail|error|timed? ?out)",),
    "NIC": (
        rf"(?:mlx5_core|bnxt_en|ice|irdma|efa|ena|ionic|cxi\w*){_FAILED_PROBE}",
        rf"mlx5_core {_PCI}:? .*(?P<detail>(?i:health compromised|assert_var|internal error"
        # "syndrome" is left out: commands of monitors that the firmware refuses have one too
        # (mlx5_cmd_out_err).
        r"|fatal error|not responding|recovery (?:flow )?(?:aborted|failed)|synd 0x(?!0+\b)\w+"
        # A command that the firmware did not answer, and a broken or hot cable.
        r"|timeout\. Will cause a leak|Port module event\[error\]"
        # print_health_info, levels 0 to 3 of the kernel's own
        r"|health issue observed, .*severity\([0-3]\)))",
        rf"bnxt_en {_PCI} .*: (?:Fatal firmware|Firmware fatal) reset event",
        # mlx5 prints a line for each queue after the first.
        rf"\S+ {_PCI} \S+: (?P<detail>(?i:tx[ _]timeout\b(?! on queue)|Detected Tx Unit Hang))",
        rf"(?:mlx5_core|bnxt_en|ice|irdma|ena) {_PCI}(?: \S+)?: (?:\w+: )?(?P<detail>Error cqe on"
        r"|ERR CQE on|Error \(timeout: \d+\) msg|HMC Error|Rebuild failed|PF reset failed"
        r"|Keep alive watchdog timeout|Found a Tx that wasn't completed)",
        # A queue of a NIC stands still: usual for the USB network of a BMC only.
        r"NETDEV WATCHDOG: (?P<device>\S+) \((?!cdc_|rndis_)\w*\): transmit queue \d+ timed out",
        rf"\S+ {_PCI} \S+: NETDEV WATCHDOG: .*transmit queue \d+ timed out",
    ),
    "PCIe": (
        rf"\S+ {_PCI}: DPC: containment event",
        rf"\S+ {_PCI}: (?:AER: )?PCIe Bus Error: severity=(?P<aer>Uncorrect[\w() -]+),",
        # The port writes it, of a device below it if that is named.
        r"\S+ \S+: AER: (?:Multiple )?(?P<aer>Uncorrect.*) received(?: from |: )"
        rf"(?!0+:0+:0+\.0){_PCI}",
        rf"\S+ {_PCI}: AER: (?:Multiple )?(?P<aer>Uncorrect\w+ .*)",
        rf"pcieport {_PCI}: pciehp: Slot\(\S+\): (?:Link Down|Card not present)",
    ),
    "disk": (
        rf"nvme{_FAILED_PROBE}",
        r"nvme (?P<device>nvme\d+): (?:controller is down|Device not ready"
        r"|Removing after probe failure|Disabling device after reset failure"
        r"|I/O .* timeout, (?:reset|disable) controller)",
        # Virtual media (sd) and empty drives (sr) have errors too, and disks refuse discards.
        r"(?:blk_update_request: |print_req_error: )?(?:critical medium|I/O(?= error, dev nvme))"
        r" error, dev (?P<device>(?!sr|fd)\w+), sector (?!.*\((?:DISCARD|WRITE_ZEROES)\))",
        r"md/\w+:(?P<device>\w+): Disk failure on ",
        r"(?:EXT4-fs|BTRFS) (?:error|critical) \(device (?P<device>[\w-]+)",
        r"XFS \((?P<device>\S+)\): (?:Metadata (?:corruption|CRC error)|Internal error|Corruption"
        r"|.*log I/O error|.*[Ss]hutting down filesystem)",
    ),
    "memory": (
        # Bit 61 of the status is set if the error was not corrected.
        rf"{_HARDWARE}(?:CPU \d+: Machine Check(?!: \w+ Bank \d+: [89cd])"
        r"|Uncorrected|Deferred error|event severity: (?:fatal|recoverable))",
        r"EDAC (?P<device>MC\d+): [1-9]\d* UE ",
        r"(?:Memory failure: 0x[0-9a-f]+: |mce: Uncorrected hardware memory)",
    ),
    # A CPU or a process does not leave the kernel.
    "CPU": (
        r"(?:NMI )?(?:watchdog: )?BUG: (?:soft|hard) lockup - (?P<cpu>CPU#\d+)",
        r"(?:NMI )?watchdog: Watchdog detected hard LOCKUP on (?P<cpu>cpu \d+)",
        r"(?:BUG: (?:workqueue lockup|unable to handle|kernel NULL)|kernel BUG at "
        r"|Kernel panic - |Oops: |(?:rcu: )?INFO: rcu_\w+ (?:self-)?detected (?:expedited )?stall)",
    ),
    "process": (r"INFO: task .+:\d+ (?:<\S+> )?blocked (?:in I/O wait )?for more than \d+ sec",),
}
"""Of devices that failed or gave wrong data, by what failed."""
_RULES: tuple[tuple[Severity | None, str], ...] = (
    # With MIG the GPU instance follows the address.
    (None, rf"NVRM: Xid \((?:PCI:)?{_PCI}[^)]*\): (?P<xid>\d+)\b"),
    # without the lines of numbers that follow it
    (None, rf"nvidia-nvswitch\d+: SXid \(PCI:{_PCI}\): (?P<sxid>\d+), (?!Severity|Data)"),
    *((Severity.FAULT, pattern) for patterns in FAULTS.values() for pattern in patterns),
    (Severity.CORRECTED, rf"amdgpu {_PCI}: .*\b[1-9]\d* (?:new )?correctable hardware errors"),
    (Severity.CORRECTED, rf"\S+ {_PCI}: (?:AER: )?PCIe Bus Error: severity=(?P<aer>[\w() -]+),"),
    (
        Severity.CORRECTED,
        rf"{_HARDWARE}(?:CPU \d+: Machine Check|Machine check events logged"
        r"|Corrected error|event severity: corrected)",
    ),
    (Severity.CORRECTED, r"EDAC (?P<device>MC\d+): \d+ CE "),
)
_OF_RECORD = re.compile(rf"(?P<record>\{{\d+\}})\[Hardware Error\]: +device_id: {_PCI}")
"""A line of a firmware's record that names the device, after the line with its severity."""
_COMPILED = tuple((severity, re.compile(pattern)) for severity, pattern in _RULES)
_LINKS = (
    re.compile(
        # igb repeats its own name and the interface's; mlx4_en prints its own name only.
        r"(?:\S+ [0-9a-f:.]+ |\w+: )?(?P<device>[\w.-]+): (?:\w+: (?P=device) )?"
        r"(?:NIC |Device )?Link (?:is )?(?P<state>up|down)\b.*",
        re.IGNORECASE,
    ),
    # e1000, and e1000e and igb of older kernels.
    re.compile(r"\w+: (?P<device>[\w.-]+) NIC Link is (?P<state>up|down)\b.*", re.IGNORECASE),
    re.compile(
        r"(?:\S+ )?systemd-networkd\[\d+\]: (?P<device>[\w.-]+): (?P<state>Gained|Lost) carrier\b.*"
    ),
    # RDMA ports, since Linux 6.14.
    re.compile(r"\S+ \S+ (?P<device>[\w.-]+: Port: \d+) Link (?P<state>ACTIVE|DOWN)"),
    # drivers/net/bonding, since Linux 5.3 and before.
    re.compile(r"\S+: \(slave (?P<device>\S+)\): link status definitely (?P<state>up|down)\b.*"),
    re.compile(
        r"(?:bonding: )?\S+: link status definitely (?P<state>up|down) for interface "
        r"(?P<device>[^\s,]+).*"
    ),
)
_FIRST_LINE, _NEAR_THE_TOP = "Linux version ", 20


def parse(text: str) -> tuple[Event, ...]:
    """Events of a log, in its order: lines of /dev/kmsg, of dmesg or of journalctl, in any mix.

    Lines that the kernel did not write are skipped.
    """
    up: set[str] = set()
    events: list[Event] = []
    for when, message in filter(None, map(_message, text.splitlines())):
        if event := _event(when, message, up):
            events.append(replace(event, at_s=_at_s(when)))
            continue
        named = _OF_RECORD.match(message)
        if named and events and events[-1].what.startswith(named["record"]):
            events[-1] = replace(events[-1], device=named["device"])
    return tuple(events)


def _event(when: str, message: str, up: set[str]) -> Event | None:
    if link := next(filter(None, (rule.fullmatch(message) for rule in _LINKS)), None):
        device = link["device"].replace(": Port: ", ":")
        if link["state"].lower() not in ("down", "lost"):
            up.add(device)
        elif device in up:
            up.discard(device)
            return Event(Severity.LINK_DOWN, when, device, "link down")
        return None
    for severity, rule in _COMPILED:
        if match := rule.match(message):
            return _of_rule(severity, match, when)
    return None


def _of_rule(severity: Severity | None, match: re.Match[str], when: str) -> Event | None:
    groups = match.groupdict()
    device = groups.get("device") or groups.get("cpu") or "machine"
    if severity is not None:
        what = f"PCIe AER {aer}" if (aer := groups.get("aer")) else match.string[:160]
        return Event(severity, when, device, what)
    number = groups.get("xid") or groups["sxid"]
    named = (xid if "xid" in groups else sxid)(int(number), match.string)
    if named.blame == "nobody":
        return None
    what = f"Xid {number}: {named.words}" if named.words else match.string[:160]
    action = "" if named.action is Action.NOTHING else str(named.action)
    return Event(Severity(named.blame), when, device, what, action=action)


def _message(line: str) -> tuple[str, str] | None:
    """The time and the text of a line; None if it is not a line of a kernel log."""
    if kmsg := _KMSG.fullmatch(line):
        kernel = int(kmsg["priority"]) >> 3 == 0  # facility 0; programs may write there too
        return (_since_boot(int(kmsg["us"])), kmsg["text"]) if kernel else None
    found = _PREFIX.fullmatch(line)
    return ((found["uptime"] or found["clock"]).strip(), found["text"]) if found else None


def _since_boot(us: int) -> str:
    """Wall-clock time; too early by the time for which the machine was suspended since boot."""
    return datetime.fromtimestamp(_booted_s() + us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _booted_s() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)


def _at_s(when: str) -> float | None:
    """`Event.at_s` of a time as this machine's log writes it now."""
    if uptime := _UPTIME.match(when):
        return _booted_s() + float(uptime[0])
    try:
        moment = datetime.fromisoformat(when.replace(",", "."))
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo else None


def since(text: str) -> str | None:
    """`Log.since`; None if no line is the kernel's, as in a journal read without permission."""
    written = [found for line in text.splitlines() if (found := _message(line)) is not None]
    if not written:
        return None
    whole = any(message.startswith(_FIRST_LINE) for _, message in written[:_NEAR_THE_TOP])
    return "" if whole else written[0][0]


def read(kmsg: str = "/dev/kmsg") -> Log:
    """Events since boot, or since the oldest line kept. Raises OSError with the reason."""
    why = []
    sources: list[Callable[[], str]] = [partial(_kmsg, kmsg)]
    sources += [partial(_output, argv) for argv in COMMANDS]
    for source in sources:
        try:
            if (oldest := since(text := source())) is not None:
                return Log(parse(text), oldest)
        except (OSError, subprocess.SubprocessError) as error:
            why.append(str(error))
    raise OSError("; ".join(why) or "the log shows no line of the kernel")


def _kmsg(path: str) -> str:
    lines: list[str] = []
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                record = os.read(file, 8192)
            except BrokenPipeError:  # lines were overwritten meanwhile
                continue
            except BlockingIOError:
                record = b""
            if not record:  # immediately so in a container with /dev/null or a pipe there
                return "\n".join(lines)
            lines.append(record.decode(errors="replace").partition("\n")[0])
    finally:
        os.close(file)


def _output(argv: tuple[str, ...]) -> str:
    done = subprocess.run(
        argv, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False
    )
    if done.returncode != 0:
        raise OSError(f"{argv[0]}: {done.stderr.strip().partition(chr(10))[0]}")
    return done.stdout
