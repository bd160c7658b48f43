"""Nodes by the names of files and folders: dmesg-gpu4.txt, gpu4/dmesg, gpu4-link.txt. Pure."""

from __future__ import annotations

import re
from pathlib import PurePath

_KERNEL_LOG = re.compile(
    r"(?:(?P<before>[\w.-]+?)[-_.])?(?:dmesg|kern(?:el)?|journal(?:ctl)?|messages|syslog|kmsg|console|nvidia-smi|rocm-smi|ibstat)"
    r"(?:[-_.](?P<after>(?!log\b|txt\b|out\b|gz\b)[\w-]+))?(?:\.\w+)*",
    re.IGNORECASE,
)
_DATE = re.compile(
    r"(?<!\d)20\d\d[-_.]?\d\d[-_.]?\d\d(?:[T_.-]?\d\d[-_:.h]?\d\d(?:[-_:.]?\d\d)?)?Z?"
)
_WORDS = re.compile(
    # Programs.
    "dmesg|kern(?:el)?|journal(?:ctl)?|messages|syslog|kmsg|console|nvidia|smi|rocm|ibstat(?:us)?|"
    "iblinkinfo|perfquery|mlxlink|ethtool|lspci|sysctl|topo|nvlink|net|links?|gids|device|plugin|qx?|"
    # What, and when.
    "var|tmp|logs?|txt|out|err|errors?|warn|warnings?|output|files?|full|raw|short|excerpt|filtered|"
    "tail|grep|iso|system|query|status|state|info|report|nvrm|xid|ecc|before|after|pre|post|during|"
    "start|begin|end|first|last|prev|previous|new|old|now|current|today|yesterday|night|reboot|"
    "restart|failure|fault|crash|hang|all|every|cluster|"
    "counters?|stats?|audit|snapshot|samples?|facts|affinity|cpuset|oom|hw|human|decoded|json|panic|"
    "[dp]mon|mig|process(?:es)?|slurmd|kubelet|containerd|ipmi|sosreport|",
    re.IGNORECASE,
)
_OPTION = re.compile("[A-Zq]|t[0-9]{1,2}")
"""Of dmesg and nvidia-smi, or the number of a time. Another letter may end a name: alpha-b."""
_DAY = re.compile(
    "(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?|"
    "(?:jan|feb|mar|apr|may|jun|jul|aug|sept?|oct|nov|dec)[0-9]{0,2}",
    re.IGNORECASE,
)
_OF_NAMES = re.compile("net|cluster|new|old|all", re.IGNORECASE)
"""In front of a name, these may be part of it."""
_DOMAIN = re.compile(r"\.(?:[\w-]+\.)*(?:internal|local|localdomain|lan|com|net|org|edu|gov|io)$")
_AFTER = re.compile(r"(?<=\d)(?:[-_.][a-zA-Z]{2,})+$")
"""Of elm4-routes, elm4.ec2.internal."""
_NO_PART = re.compile(f"{_DAY.pattern}|{_WORDS.pattern}", re.IGNORECASE)
_NO_NODE = re.compile(
    r"\d*|(?:nodes?|hosts?|gpus?|hcas?|nics?|pods?|workers?|servers?|machines?|ranks?|racks?|users?)|"
    r"(?:jobs?|runs?|cases?|attempt|try|tries|step|boot|rank|incident|ticket|bug|issue|pid|bundle)"
    r"[-_.]?\d*|(?:slurm|r|v|t|(?:local|global|node)[-_]?rank|task|proc|[tpdce]p|numa|netns|day|test|phase|"
    r"seed|epoch|part|sample|user)[-_.]?\d+|(?:mlx\d|bnxt|irdma|rdmap|ens?\d|eth\d|bond\d|ibp?\d|hsn\d|cxi\d|nvme\d).*",
    re.IGNORECASE,
)


_NUMBERED = re.compile(r"\d|[-_.][a-z]$")


def node_in(name: str) -> str:
    """What of the name of a file or a folder may be a node's; "" if nothing is."""
    parts = re.split(r"([-_.])", _DATE.sub("", name))
    while len(parts) > 1 and (_NO_PART.fullmatch(parts[0]) or _OPTION.fullmatch(parts[0])):
        if _OF_NAMES.fullmatch(parts[0]) and any(map(str.isdigit, "".join(parts[1:]))):
            break
        del parts[:2]
    while len(parts) > 1 and (_NO_PART.fullmatch(parts[-1]) or _OPTION.fullmatch(parts[-1])):
        del parts[-2:]
    found = _AFTER.sub("", _DOMAIN.sub("", "".join(parts)))
    word = found.rstrip("0123456789") if len(found) > 3 else found
    no_name = _WORDS.fullmatch(word) or _DAY.fullmatch(found) or _OPTION.fullmatch(found)
    return "" if no_name or _NO_NODE.fullmatch(found) else found


def node_of_kernel_log(file: str) -> str | None:
    """The node whose kernel log, or output of nvidia-smi or ibstat, a file is, by its name or
    folder; "" if neither tells. None for other files."""
    path = PurePath(file)
    if (found := _KERNEL_LOG.fullmatch(path.name)) is not None:
        names = [node_in(found[part] or "") for part in ("after", "before")]
        # A word without a number or a letter of its own may be any.
        names = [name for name in names if len(name) > 1 and _NUMBERED.search(name)]
        names.append(node_in(path.parent.name))
    elif _KERNEL_LOG.fullmatch(path.parent.name):
        names = [node_in(re.sub(r"\.(?:log|txt|out|gz)\b.*", "", path.name))]
    else:
        return None
    return next(filter(None, names), "")
