"""Profiles: specs of common systems that ship with the package, found by name.

Reads no page: names and paths only, so that discovery and options may ask for them too.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from pytest_mnode.errors import SpecError
from pytest_mnode.spec.quantity import shown

PREFIX = "profile:"
_ALIASES = {
    "p4d.24xlarge": "p4d",
    "p4de.24xlarge": "p4de",
    "p5.48xlarge": "p5",
    "p5e.48xlarge": "p5e",
    "p5en.48xlarge": "p5en",
    "p6-b200.48xlarge": "p6-b200",
    "p6e-gb200.36xlarge": "p6e-gb200",
    "standard-nd96amsr-a100-v4": "nd-a100-v4",
    "standard-nd96isr-h100-v5": "nd-h100-v5",
    "standard-nd96isr-h200-v5": "nd-h200-v5",
    "standard-nd128isr-ndr-gb200-v6": "nd-gb200-v6",
    "a3-highgpu-8g": "a3-high",
    "a3-megagpu-8g": "a3-mega",
    "a3-ultragpu-8g": "a3-ultra",
    "a4-highgpu-8g": "a4",
    "bm.gpu.h100.8": "oci-h100",
}
"""Profiles by the names of instances, in lower case with - in place of _."""
NODE_TYPES = (
    *("hgx-a100", "hgx-h100", "hgx-h200", "hgx-b200", "hgx-b300", "gb200-nvl72", "gb300-nvl72"),
    *("hgx-h20", "mi300x", "mi325x", "mi350x", "mi355x", "l40s"),
)
"""Profiles beside which a page extends another fabric, such as [hgx-h200, roce]."""


def default_spec_path() -> Path:
    """The rack's own spec: the copy in the installed package, else the one of the repository."""
    package = Path(__file__).parents[1]
    packaged = package / "clusters" / "rack.yaml"
    return packaged if packaged.exists() else package.parent / "fixtures/clusters/rack.yaml"


def profile_names(*, parts: bool = False) -> tuple[str, ...]:
    """Names of all profiles, in alphabetical order, without aliases.

    parts: also of pages that are no clusters, such as a fabric, which others extend.
    """
    return tuple(sorted(_files(parts=parts)))


def _files(*, parts: bool) -> dict[str, Path]:
    folder = default_spec_path().parent
    files = [*folder.glob("*.yaml"), *(folder.glob("parts/*.yaml") if parts else ())]
    return {path.stem: path for path in files}


def find_profile(name: str, *, parts: bool = False) -> Path | None:
    """The file of a profile, by its name or an instance's, in upper or lower case; None without."""
    plain = name.lower().replace("_", "-")
    return _files(parts=parts).get(_ALIASES.get(plain, plain))


def accepted_names(name: str, *, parts: bool = False) -> str:
    """What can be written instead of a name that is unknown: the close ones first, then all."""
    names = profile_names(parts=parts)
    close = get_close_matches(name.lower(), [*names, *_ALIASES], n=2)
    meant = f"did you mean {' or '.join(close)}? " if close else ""
    return f"{meant}accepted: {', '.join(names)}"


def spec_file(path: Path) -> Path:
    """The file of a spec: `path` itself, or the file of the profile for a path profile:NAME.

    Raises SpecError for an unknown profile, which lists all.
    """
    if not str(path).startswith(PREFIX):
        return path
    name = str(path).removeprefix(PREFIX)
    found = find_profile(name)
    if found is None:
        raise SpecError(f"{PREFIX}{name}: unknown profile {shown(name)}; {accepted_names(name)}")
    return found
