"""Variables that networks read: what their values mean, and which of them cost speed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

PREFIXES = (
    *("NCCL_", "RCCL_", "HCCL_", "GLOO_", "TORCH_GLOO_", "TP_"),
    *("UCX_", "UCC_", "FI_", "OFI_NCCL_"),
)
"""Prefixes of the variables that are read from a rank's environment."""

FAILOVER = ("NCCL_IB_RESILIENCY_PORT_FAILOVER", "NCCL_IB_RESILIENCY_PORT_RECOVERY")
"""Switches, off by default, by which a dead port does not end a job: its traffic moves to the
others, and back. Source: NCCL 2.29.7, release notes; NCCL, src/transport/net_ib."""

MUST_BE_EQUAL = (
    *("NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_DISABLE", "NCCL_ALGO"),
    *("NCCL_PROTO", "NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_COLLNET_ENABLE"),
    *("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_CROSS_NIC", "NCCL_NVLS_ENABLE"),
    *("NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_TC", "NCCL_IB_SL", "FI_PROVIDER"),
    *FAILOVER,
)
"""Variables that must be equal on all ranks, or ranks do not run the same way. Names of interfaces
and devices, and indices of GIDs, may differ between nodes."""
_WORDS = ("NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_ALGO", "NCCL_PROTO", "FI_PROVIDER")
_PLAIN_DEFAULTS = {"NCCL_IB_ROCE_VERSION_NUM": 2, "NCCL_IB_TC": 0, "NCCL_IB_SL": 0} | dict.fromkeys(
    FAILOVER, 0
)
"""Defaults of variables that cost nothing. Source: NCCL user guide, environment variables."""
GID_CHOSEN_SINCE = (2, 21)
"""Earlier versions take GID 0 unless a setting names another; since then NCCL takes a GID of the
RoCE version that is set. Source: NCCL user guide, NCCL_IB_GID_INDEX and
NCCL_IB_ROCE_VERSION_NUM."""
_NUMBER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_DISTANCES = {"LOC": 0, "NVL": 0, "NVB": 0, "C2C": 0, "PIX": 1, "PXB": 2, "PHB": 3, "SYS": 4}


def of_networks(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment that networks read."""
    return {name: value for name, value in environment.items() if name.startswith(PREFIXES)}


def number(value: str | None) -> int | None:
    """A number as NCCL reads it, by strtoll; None for an empty value, which NCCL ignores.

    Decimal, 0x… or 0…; text after it is ignored, and a word is 0: NCCL_NVLS_ENABLE=true is
    off.
    Source: NCCL, src/misc/param.cc, ncclLoadParam.
    """
    if not value:
        return None
    found = _NUMBER.match(value)
    if found is None:
        return 0
    digits = found[2].lower()
    return int(found[1] + digits, 16 if "x" in digits else 8 if digits[0] == "0" else 10)


def is_on(value: str | None) -> bool:
    """Whether a switch is set to anything but 0."""
    return number(value) not in (None, 0)


def is_off(value: str | None) -> bool:
    """Whether a switch is set to 0."""
    return number(value) == 0


def distance(value: str | None) -> int | None:
    """NCCL_P2P_LEVEL or NCCL_NET_GDR_LEVEL as 0 to 4; None if NCCL ignores it, such as "loc".

    Source: NCCL, src/graph/paths.cc, ncclGetLevel.
    """
    text = value or ""
    return min(number(text) or 0, 4) if text[:1].isdecimal() else _DISTANCES.get(text)


def version_numbers(text: str | None) -> tuple[int, ...] | None:
    """(2, 27, 5) for "2.27.5+cuda12.9"; None if it is no version."""
    found = re.match(r"\d+(?:\.\d+)+", text or "")
    return tuple(map(int, found[0].split("."))) if found else None


def _is_set(_: str) -> bool:
    return True


def _one_of(*words: str) -> Callable[[str], bool]:
    return lambda value: value.strip().lower() in words


def _from_to(least: int, most: int) -> Callable[[str], bool]:
    return lambda value: least <= (number(value) or least - 1) <= most


def _up_to(most: int) -> Callable[[str], bool]:
    return lambda value: (far := distance(value)) is not None and far <= most


def _lacks_a_protocol(value: str) -> bool:
    return not {"ll", "ll128", "simple"} <= {part.strip() for part in value.lower().split(",")}


def _lacks(provider: str) -> Callable[[str], bool]:
    def lacks(value: str) -> bool:
        providers = value.strip().lower()
        return (provider in providers) is providers.startswith("^")

    return lacks


_EFA, _ROCE, _INFINIBAND = (frozenset({kind}) for kind in ("efa", "roce", "infiniband"))
_VERBS = _INFINIBAND | _ROCE
_RDMA = _VERBS | _EFA
_CXI, _UB, _PLUGINS = (frozenset(kinds) for kinds in (("cxi",), ("ub",), ("tcpx", "tcpxo", "cxi")))
"""Fabrics by a plugin of NCCL, as EFA is."""
_ALL = _RDMA | _PLUGINS | _UB | {"ethernet"}


@dataclass(frozen=True, slots=True)
class CostRule:
    """A variable, and which of its values cost speed.

    costs: whether a value that is neither empty nor the default costs speed. kinds: of fabric.
    defaults: by first version, from the one that first reads the variable; None: any value counts.
    before: the first version that no longer reads it.
    """

    name: str
    costs: Callable[[str], bool]
    why: str
    kinds: frozenset[str] = _ALL
    defaults: tuple[tuple[tuple[int, ...], str | None], ...] = (((), None),)
    before: tuple[int, ...] | None = None


_OFF = (((), "0"),)
_CHANNELS = _from_to(1, 31)
"""NCCL chooses up to 32 since 2.5."""
_MANY = _from_to(2, 1 << 20)
_TRUE = _one_of("1", "t", "true", "y", "yes")
"""As torch reads a switch."""
_GDR = "GPUDirect only up to this distance"


def _since(*version: int) -> tuple[tuple[tuple[int, ...], None]]:
    return ((version, None),)


SETTINGS = (
    # Another network
    CostRule("NCCL_IB_DISABLE", is_on, "no RDMA", _VERBS, _OFF),
    CostRule("NCCL_NET", _one_of("socket", "fastsocket"), "sockets instead of RDMA", _RDMA),
    CostRule("NCCL_NET", _one_of("socket", "fastsocket", "ib"), "not the plugin", _PLUGINS),
    CostRule("NCCL_NET", _one_of("ib"), "verbs instead of EFA's plugin", _EFA),
    CostRule("NCCL_NET_PLUGIN", _one_of("none"), "no EFA plugin", _EFA),
    CostRule("NCCL_NET_PLUGIN", _one_of("none"), "no network plugin", _PLUGINS),
    CostRule("FI_PROVIDER", _lacks("efa"), "another provider than EFA", _EFA),
    CostRule("FI_PROVIDER", _lacks("cxi"), "another provider than Slingshot's", _CXI),
    CostRule("HCCL_INTER_HCCS_DISABLE", _one_of("true"), "RoCE instead of UnifiedBus", _UB),
    CostRule("FI_EFA_USE_DEVICE_RDMA", _one_of("0", "no", "false", "off"), "no RDMA", _EFA),
    CostRule("GLOO_DEVICE_TRANSPORT", _one_of("tcp_tls"), "encryption of all traffic"),
    # Within a node
    CostRule(
        "NCCL_P2P_DISABLE", _from_to(1, 1), "no direct copies between accelerators", defaults=_OFF
    ),
    CostRule("NCCL_P2P_DIRECT_DISABLE", is_on, "copies through buffers", defaults=_OFF),
    CostRule("NCCL_P2P_LEVEL", _up_to(3), "direct copies only up to this distance"),
    CostRule("NCCL_SHM_DISABLE", is_on, "no shared memory", defaults=_OFF),
    CostRule("NCCL_NVLS_ENABLE", is_off, "no NVLink SHARP", defaults=_since(2, 17)),
    CostRule(
        "NCCL_CUMEM_ENABLE", is_off, "no NVLink SHARP", defaults=(((2, 18), "0"), ((2, 19), "-2"))
    ),
    CostRule("NCCL_NVB_DISABLE", is_on, "no path over another GPU", defaults=(((2, 11), "0"),)),
    CostRule("NCCL_PXN_DISABLE", is_on, "no use of another GPU's NIC", defaults=(((2, 12), "0"),)),
    CostRule(
        "NCCL_PXN_C2C",
        is_off,
        "no use of another GPU's NIC over C2C",
        defaults=(((2, 27), "0"), ((2, 28), "1")),
    ),
    # GPUDirect RDMA
    CostRule("NCCL_NET_GDR_LEVEL", _up_to(1), _GDR, _RDMA),
    CostRule("NCCL_IB_GDR_LEVEL", _up_to(1), _GDR, _VERBS),
    CostRule("NCCL_NET_GDR_READ", is_off, "no GPUDirect reads", _RDMA, (*_OFF, ((2, 4, 2), "1"))),
    CostRule(
        "NCCL_NET_GDR_C2C", is_off, "no GPUDirect over C2C", _RDMA, (((2, 26), "0"), ((2, 27), "1"))
    ),
    CostRule("NCCL_DMABUF_ENABLE", is_off, "no dma-buf", _RDMA, _since(2, 13)),
    CostRule("NCCL_IB_CUDA_SUPPORT", is_off, "no GPUDirect", _VERBS, before=(2, 4)),
    # InfiniBand and RoCE
    CostRule("NCCL_IB_HCA", _is_set, "only the listed RDMA devices", _VERBS),
    CostRule(
        "NCCL_IB_GID_INDEX", _is_set, "one GID for all devices", _ROCE, (*_OFF, ((2, 21), "-1"))
    ),
    CostRule(
        "NCCL_IB_SPLIT_DATA_ON_QPS",
        _is_set,
        "another use of queue pairs than the default",
        _VERBS,
        (((2, 18), "1"), ((2, 20), "0")),
    ),
    CostRule("NCCL_IB_PCI_RELAXED_ORDERING", is_off, "no relaxed ordering", _VERBS, _since(2, 12)),
    CostRule("NCCL_IB_ADAPTIVE_ROUTING", is_off, "no adaptive routing", _INFINIBAND, _since(2, 16)),
    CostRule("NCCL_IB_MERGE_NICS", is_off, "ports of one card not merged", _VERBS, _since(2, 20)),
    # What NCCL would choose
    CostRule("NCCL_ALGO", _is_set, "one algorithm", defaults=_since(2, 5)),
    CostRule("NCCL_PROTO", _lacks_a_protocol, "one protocol", defaults=_since(2, 5)),
    CostRule("NCCL_MAX_NCHANNELS", _CHANNELS, "few channels"),
    CostRule("NCCL_MAX_NRINGS", _CHANNELS, "few channels"),
    CostRule("NCCL_MAX_CTAS", _CHANNELS, "few thread blocks", defaults=_since(2, 17)),
    CostRule("NCCL_MAX_P2P_NCHANNELS", _CHANNELS, "few channels"),
    CostRule("NCCL_MIN_NCHANNELS", _MANY, "many channels"),
    CostRule("NCCL_MIN_NRINGS", _MANY, "many channels"),
    CostRule("NCCL_MIN_CTAS", _MANY, "many thread blocks", defaults=_since(2, 17)),
    CostRule("NCCL_NTHREADS", _from_to(1, 255), "fewer threads than any default"),
    CostRule("NCCL_BUFFSIZE", _from_to(1, (1 << 22) - 1), "buffers below the default of 4 MiB"),
    CostRule("NCCL_CROSS_NIC", _is_set, "rails set by hand", defaults=(((), "2"),)),
    CostRule("NCCL_COLLNET_ENABLE", is_on, "in-network reduction set by hand", defaults=_OFF),
    CostRule("NCCL_TOPO_FILE", _is_set, "another topology than the machine's"),
    CostRule("NCCL_GRAPH_FILE", _is_set, "another graph than NCCL would search"),
    CostRule("NCCL_TUNER_PLUGIN", _is_set, "a tuner", _ALL - _EFA),
    CostRule("NCCL_TUNER_PLUGIN", _one_of("none"), "no tuner of EFA's plugin", _EFA),
    CostRule("NCCL_HOSTID", _is_set, "another identity of the host"),
    CostRule("NCCL_LAUNCH_MODE", _one_of("group"), "launches in groups"),
    # Checks and logs
    CostRule("NCCL_CHECK_POINTERS", is_on, "checks in every call", defaults=_OFF),
    CostRule(
        "NCCL_CHECK_MODE",
        _one_of("debug_local", "debug_global"),
        "checks in every call",
        defaults=_since(2, 29, 7),
    ),
    CostRule("NCCL_DEBUG", _one_of("trace"), "a log of every call"),
    CostRule("TORCH_NCCL_BLOCKING_WAIT", _TRUE, "a wait in every collective"),
    CostRule("NCCL_BLOCKING_WAIT", _TRUE, "a wait in every collective"),
    CostRule("TORCH_NCCL_NAN_CHECK", _TRUE, "a check of every input"),
    CostRule("TORCH_DISTRIBUTED_DEBUG", _one_of("detail"), "a check in every collective"),
    CostRule("CUDA_LAUNCH_BLOCKING", is_on, "a wait in every kernel"),
)
"""Settings that cost speed, or that override a choice of NCCL.

Sources: NCCL user guide, Environment Variables, of 2.4 to 2.32; torch.distributed and
ProcessGroupNCCL documentation; gloo's Device; fi_efa(7).
"""


def cost(name: str, value: str, kind: str, nccl: str | None) -> str | None:
    """What a setting costs on a fabric of this kind; None if it costs nothing.

    nccl: NCCL's version. If it is None, a value that is the default of any version costs
    nothing, nor does a variable that newer versions do not read.
    """
    version = version_numbers(nccl)
    for setting in SETTINGS:
        if setting.name != name or kind not in setting.kinds or not value.strip():
            continue
        defaults = [d for first, d in setting.defaults if version is None or first <= version]
        if setting.before is not None and (version is None or version >= setting.before):
            continue
        if version is not None:
            defaults = defaults[-1:]
        if defaults and number(value) not in map(number, defaults) and setting.costs(value):
            return setting.why
    return None


def is_default(name: str, value: str | None) -> bool:
    """Whether a value is the default of every version that reads the variable, or empty."""
    if not value:
        return value is not None
    if name in _PLAIN_DEFAULTS:
        return number(value) == _PLAIN_DEFAULTS[name]
    rules = (rule.defaults for rule in SETTINGS if rule.name == name)
    return any({number(default) for _, default in rule} == {number(value)} for rule in rules)


def effect(name: str, value: str | None) -> str | int | None:
    """What NCCL or libfabric makes of a value of one of `MUST_BE_EQUAL`: equal if it acts alike.

    None if the variable is not set, is ignored, or has its default.
    """
    if value is None or is_default(name, value):
        return None
    if name in _WORDS:
        return value.lower()
    return distance(value) if name == "NCCL_NET_GDR_LEVEL" else number(value)


def why_silent(settings: Mapping[str, str]) -> str:
    """Why NCCL's log may lack channels, with the remedy; empty if the settings are right."""
    level = settings.get("NCCL_DEBUG", "")
    if level.upper() not in ("INFO", "TRACE"):
        shown = f"NCCL_DEBUG={level}" if level else "NCCL_DEBUG is not set"
        return f"{shown}; set NCCL_DEBUG=INFO"
    subsystems = settings.get("NCCL_DEBUG_SUBSYS", "")
    listed = subsystems.upper().removeprefix("^").split(",")
    named = {part.strip() for part in listed if part.strip()} & {"ALL", "NET", "INIT"}
    excluded = {"ALL"} & named or named >= {"NET", "INIT"}
    if subsystems.strip() and (excluded if subsystems.startswith("^") else not named):
        return f"NCCL_DEBUG_SUBSYS={subsystems}; set INIT,NET,ENV,GRAPH"
    return ""


@dataclass(frozen=True, slots=True)
class Selection:
    """A list as in NCCL_SOCKET_IFNAME and NCCL_IB_HCA: names or, without `=`, prefixes.

    excludes: the list begins with `^` and selects all other names. exact: it begins with `=` and
    has whole names. names: each with the port after its colon; None for every port. A blank is a
    part of a name.

    Source: NCCL user guide, environment variables, NCCL_SOCKET_IFNAME and NCCL_IB_HCA.
    """

    excludes: bool
    exact: bool
    names: tuple[tuple[str, int | None], ...]

    @classmethod
    def of(cls, written: str) -> Self:
        """Parse a list; any text is valid."""
        excludes = written.startswith("^")
        rest = written.removeprefix("^")
        exact = rest.startswith("=")
        rest = rest.removeprefix("=")
        names = [_name_and_port(part) for part in rest.split(",") if part]
        return cls(excludes, exact, tuple(names))

    def takes(self, name: str, port: int | None = None) -> bool:
        """Whether it selects a device; an empty list means all."""
        listed = not self.names or any(
            (name == one if self.exact else name.startswith(one))
            and (wanted is None or port is None or port == wanted)
            for one, wanted in self.names
        )
        return listed is not self.excludes

    @property
    def doubt(self) -> str:
        """What a reader may overlook in the list; "" if nothing."""
        blanks = any(" " in name for name, _ in self.names)
        return " (a blank is a part of a name)" if blanks else ""


def _name_and_port(text: str) -> tuple[str, int | None]:
    """DEVICE, DEVICE:PORT or DEVICE:PORT:RAIL:PLANE, where the port may be empty."""
    name, _, rest = text.partition(":")
    port = rest.partition(":")[0]
    return (name, int(port) if port.isdigit() else None)
