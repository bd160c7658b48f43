"""Xids of NVIDIA's GPUs and SXids of its NVSwitches: whom each accuses, and what it asks for.

Sources: NVIDIA, "XID Errors", "Analyzing Xid Errors with the Xid Catalog" (immediate action; where
that is a work flow or nothing, what it ends with); "Fabric Manager User Guide", NVSwitch SXids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Literal, NamedTuple

Blame = Literal["fault", "corrected", "nobody"]
"""fault: a device failed or gave wrong data. corrected: it goes on, after an error that it
corrected, or with less to spare. nobody: an error or an exit of a program, or for information."""


class Action(StrEnum):
    """What is asked for; in rising order of its effect on the node."""

    NOTHING = "nothing"
    CHECK_COOLING = "check cooling"
    RESTART_APP = "restart the program"
    UPDATE = "update driver or firmware"
    CONTACT_SUPPORT = "contact support"
    CHECK_CABLES = "check cables and seats"
    RESET_IF_UVM = "reset the GPU if programs use unified memory"
    RECOVER_IMEX = "recover the IMEX domain"
    DRAIN = "drain the GPU's peers (P2P)"
    RESET_GPU = "reset the GPU"
    DRAIN_AND_RESET = "drain the GPU's peers, then reset it"
    RESET_FABRIC = "reset all GPUs and NVSwitches"
    RESTART_VM = "restart the virtual machine"
    REBOOT = "reboot the node"


class Xid(NamedTuple):
    """An error of the driver's catalogue. words: what happened."""

    blame: Blame
    action: Action
    words: str


_NVLINK = "NVLink error"
_ENGINES: Mapping[str, tuple[int, ...]] = {
    "copy engine": (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)),
    "video decoder": (68, 83, 84, 88, 89, 96, 97, 98),
    "JPEG decoder": (82, *range(99, 106)),
    "optical flow engine": (86, 139),
}
_RESTART = {
    8: "GPU stopped processing a program",
    13: "graphics engine exception",
    31: "illegal address of a program (MMU fault)",
    42: "video engine exception",
    43: "a program was stopped",
    60: "video engine exception",
    69: "graphics engine class error",
    80: "damaged commands of a program",
}
_FOR_INFORMATION = {
    44: "graphics engine fault at a context switch",
    45: "a program's work was removed, as it exited or crashed",
    63: "a memory row was remapped, or a page retired, as intended",
    66: "illegal access of a driver",
    67: "illegal access of a driver",
    106: "test message",
    107: "test message",
    108: "illegal address of a peer over NVLink",
    137: "illegal access of a peer over NVLink",
    141: "CUDA fast path error",
    152: "DLA error",
    153: "DLA timeout",
    162: "power smoothing is on again",
}
XIDS: Mapping[int, Xid] = {
    **{
        number: Xid("nobody", Action.RESTART_APP, f"{engine} exception")
        for engine, numbers in _ENGINES.items()
        for number in numbers
    },
    **{number: Xid("nobody", Action.RESTART_APP, words) for number, words in _RESTART.items()},
    **{number: Xid("nobody", Action.NOTHING, words) for number, words in _FOR_INFORMATION.items()},
    32: Xid("fault", Action.RESTART_APP, "damaged commands on their way to the GPU"),
    46: Xid("fault", Action.RESET_GPU, "GPU stopped processing"),
    48: Xid("fault", Action.RESET_GPU, "uncorrectable ECC error"),
    54: Xid("fault", Action.CHECK_CABLES, "auxiliary power is not connected"),
    61: Xid("fault", Action.CONTACT_SUPPORT, "micro-controller breakpoint"),
    62: Xid("fault", Action.RESET_GPU, "micro-controller halted"),
    64: Xid("fault", Action.RESET_GPU, "a row could not be remapped"),
    74: Xid("fault", Action.RESET_GPU, _NVLINK),
    78: Xid("fault", Action.UPDATE, "virtual GPU did not start"),
    79: Xid("fault", Action.REBOOT, "GPU has fallen off the bus"),
    92: Xid("fault", Action.CONTACT_SUPPORT, "many corrected ECC errors"),
    93: Xid("corrected", Action.CONTACT_SUPPORT, "InfoROM is worn"),
    94: Xid("fault", Action.RESTART_APP, "contained ECC error"),
    95: Xid("fault", Action.RESET_GPU, "uncontained ECC error"),
    109: Xid("fault", Action.RESET_GPU, "context switch timed out"),
    110: Xid("fault", Action.RESET_GPU, "security fault"),
    119: Xid("fault", Action.RESET_GPU, "GSP does not answer"),
    120: Xid("fault", Action.RESET_GPU, "GSP error"),
    121: Xid("corrected", Action.NOTHING, "corrected C2C link error"),
    122: Xid("fault", Action.CONTACT_SUPPORT, "SPI flash could not be read"),
    123: Xid("fault", Action.CONTACT_SUPPORT, "SPI flash could not be written"),
    124: Xid("fault", Action.CONTACT_SUPPORT, "SPI flash could not be erased"),
    125: Xid("fault", Action.CONTACT_SUPPORT, "InfoROM file system error"),
    136: Xid("fault", Action.RESET_GPU, "NVLink training failed"),
    140: Xid("fault", Action.RESET_GPU, "ECC error that was not recovered"),
    142: Xid("fault", Action.CONTACT_SUPPORT, "video encoder error"),
    143: Xid("fault", Action.RESET_GPU, "GPU initialisation failed"),
    **{number: Xid("fault", Action.RESET_GPU, _NVLINK) for number in range(144, 151)},
    151: Xid("fault", Action.RESTART_VM, "key rotation error"),
    155: Xid("corrected", Action.RESET_GPU, "software took an NVLink down"),
    156: Xid("fault", Action.RESET_GPU, "a failing resource waits for its retirement"),
    157: Xid("fault", Action.CONTACT_SUPPORT, "a failing resource could not be retired"),
    158: Xid("fault", Action.RESET_GPU, "GPU does not answer"),
    159: Xid("fault", Action.RESET_IF_UVM, "C2C link error without data"),
    160: Xid("corrected", Action.CONTACT_SUPPORT, "a memory channel was retired"),
    161: Xid("fault", Action.CONTACT_SUPPORT, "a memory channel could not be retired"),
    163: Xid("corrected", Action.CHECK_COOLING, "power smoothing is off"),
    164: Xid("corrected", Action.CONTACT_SUPPORT, "power smoothing is nearly worn"),
    165: Xid("fault", Action.CONTACT_SUPPORT, "power smoothing is worn out"),
    166: Xid("fault", Action.CONTACT_SUPPORT, "NVLink traffic before encryption was set up"),
    167: Xid("fault", Action.CONTACT_SUPPORT, "PCIe timed out"),
    168: Xid("fault", Action.CONTACT_SUPPORT, "GPU has less memory, because of errors in it"),
    169: Xid("fault", Action.CONTACT_SUPPORT, "security processor halted"),
    170: Xid("fault", Action.CONTACT_SUPPORT, "NVLink error in confidential computing"),
    171: Xid("fault", Action.RESET_GPU, "uncorrectable ECC error in DRAM"),
    172: Xid("fault", Action.RESET_GPU, "uncorrectable ECC error in SRAM"),
}
_UNKNOWN = Xid("fault", Action.CONTACT_SUPPORT, "see NVIDIA XID Errors")
_RECOVERY = 154
"""The Xid by which the driver says that it asks for another action than before."""
_RECOVERY_ACTIONS = (
    *(Action.NOTHING, Action.RESET_GPU, Action.REBOOT, Action.DRAIN, Action.DRAIN_AND_RESET),
    *(Action.RECOVER_IMEX, Action.RESET_GPU, Action.REBOOT),
)
"""By number. Source: nvml.h, nvmlDeviceGpuRecoveryAction_t."""
_RECOVERY_TO = re.compile(r"\bchanged from .* to (?:0x)?([0-9a-f]+)\b")
_NONFATAL = re.compile(r"\bNon-?fatal\b", re.IGNORECASE)
_ALWAYS_FATAL = frozenset({12020, 22003, 22011, *range(23001, 23018)})
_SXID_ACTIONS: Mapping[int, Action] = {
    **dict.fromkeys(_ALWAYS_FATAL, Action.REBOOT),
    **dict.fromkeys((11004, 12028), Action.RESTART_VM),
    **dict.fromkeys((10004, 10005), Action.CHECK_COOLING),
    20012: Action.CHECK_CABLES,
    19084: Action.RESET_FABRIC,
}


def xid(number: int, message: str) -> Xid:
    """The entry of an Xid. message: its whole line, which says whether an error of NVLink was
    fatal, and which action Xid 154 names."""
    found = XIDS.get(number, _UNKNOWN)
    if number == _RECOVERY:
        named = _RECOVERY_TO.search(message)
        actions = dict(enumerate(_RECOVERY_ACTIONS))
        action = actions.get(int(named[1], 16) if named else -1, Action.CONTACT_SUPPORT)
        blame: Blame = "nobody" if action is Action.NOTHING else "fault"
        return Xid(blame, action, "the driver asks for another action")
    # Drivers call corrected errors of NVLink nonfatal.
    if found.words == _NVLINK and _NONFATAL.search(message):
        return Xid("corrected", Action.NOTHING, found.words)
    return found


def sxid(number: int, message: str) -> Xid:
    """The entry of an SXid, of a line that says whether it was fatal."""
    if _NONFATAL.search(message):
        return Xid("corrected", _SXID_ACTIONS.get(number, Action.NOTHING), "")
    return Xid("fault", _SXID_ACTIONS.get(number, Action.RESET_FABRIC), "")
