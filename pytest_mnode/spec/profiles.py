"""Profiles: specs of common systems that ship with the package, found by name.

Reads no page: names and paths only, so that discovery and options may ask for them too.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from pytest_mnode.errors import SpecError
from pytest_mnode.spec import default_spec_path
from pytest_mnode.spec.quantity import shown

PREFIX = "profile:"
_ALIASES: dict[str, str] = {}
"""Names of instances, as their cloud writes them in lower case, of profiles with shorter names."""


def profile_names() -> tuple[str, ...]:
    """Names of all profiles, in alphabetical order, without aliases."""
    return tuple(sorted(path.stem for path in default_spec_path().parent.glob("*.yaml")))


def find_profile(name: str) -> Path | None:
    """The file of a profile, by its name or an instance's, in upper or lower case; None without."""
    plain = name.lower().replace("_", "-")
    plain = _ALIASES.get(plain, plain)
    file = default_spec_path().with_name(f"{plain}.yaml")
    return file if plain in profile_names() else None


def accepted_names(name: str) -> str:
    """What can be written instead of a name that is unknown: the close ones first, then all."""
    names = profile_names()
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
