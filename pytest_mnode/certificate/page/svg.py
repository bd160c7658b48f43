"""SVG as it goes into the page: no ids that meet, no addresses, colours of the page."""

from __future__ import annotations

import re

INK, FAINT, GRID, GOOD, BAD, UNSURE, PAPER = (f"#{n:02x}{n:02x}{n:02x}" for n in range(1, 8))
SERIES = tuple(f"#{n:02x}{n:02x}{n:02x}" for n in range(8, 16))
_VARIABLES = {
    **dict(
        zip(
            (INK, FAINT, GRID, GOOD, BAD, UNSURE, PAPER),
            ("ink", "faint", "grid", "good", "bad", "unsure", "paper"),
            strict=True,
        )
    ),
    **{colour: f"c{n}" for n, colour in enumerate(SERIES)},
}
"""Colours that no picture has by itself, each for a variable of the page's style, which knows
whether the page is light, dark or printed."""

_PROLOG = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_SIZE = re.compile(r'<svg [^>]*?viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>')
_ID = re.compile(r' id="([^"]*)"')
_REFERENCE = re.compile(r'(?:href="#|url\(#)([^")]+)')
_COLOUR = re.compile("|".join(_VARIABLES))


def inlined(svg: str, prefix: str, label: str) -> str:
    """An SVG file as an element of the page.

    prefix: makes its ids differ from those of other pictures. label: escaped, for who cannot see.
    """
    svg = _PROLOG.sub("", svg).strip()
    used = set(_REFERENCE.findall(svg))
    svg = _ID.sub(lambda m: f' id="{prefix}{m[1]}"' if m[1] in used else "", svg)
    svg = svg.replace('xlink:href="#', f'href="#{prefix}').replace("xlink:href", "href")
    svg = svg.replace("url(#", f"url(#{prefix}")
    svg = _COLOUR.sub(lambda m: f"var(--{_VARIABLES[m[0]]})", svg)
    return _SIZE.sub(
        lambda m: f'<svg viewBox="0 0 {m[1]} {m[2]}" role="img" aria-label="{label}">', svg, count=1
    )
