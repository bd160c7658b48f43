"""Quantities as people write them: `400 Gbit/s`, `1 MiB`, `30 s`. A unit is never guessed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from re import compile as regex

# 18 digits hold every real rate, size and time, and no input can overflow a float
_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{1,18})?"
_WRITTEN = regex(rf"({_NUMBER}) *([^\s0-9.][^\s]*)")
_BARE = regex(rf"[+-]?{_NUMBER}")


def shown(value: object) -> str:
    """`value` for a message: one short line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of quantity: `units` maps each accepted symbol to its worth in the base unit."""

    what: str
    example: str
    units: Mapping[str, Fraction]
    whole: bool

    @property
    def pattern(self) -> str:
        """Regular expression, anchored, of every text that `parse` may accept."""
        return rf"^{_NUMBER} *(?:{'|'.join(self.units)})$"

    @property
    def accepted(self) -> str:
        """The accepted form, for error messages."""
        return f"{self.what}, such as {self.example!r} (units {', '.join(self.units)})"

    def parse(self, written: object) -> Fraction:
        """The quantity in its base unit, exactly; always above zero.

        Raises ValueError, which names the value met, its error and the accepted form.
        """
        if isinstance(written, int | float) and not isinstance(written, bool):
            raise ValueError(f"{written!r} has no unit; accepted: {self.accepted}")
        match = _WRITTEN.fullmatch(written) if isinstance(written, str) else None
        if match is None:
            bare = isinstance(written, str) and _BARE.fullmatch(written.strip())
            why = "has no unit" if bare else f"is not {self.what}"
            raise ValueError(f"{shown(written)} {why}; accepted: {self.accepted}")
        number, symbol = match.groups()
        if symbol not in self.units:
            raise ValueError(f"{shown(written)} {_misfit(symbol)}; accepted: {self.accepted}")
        value = Fraction(number) * self.units[symbol]
        if value == 0:
            raise ValueError(f"{shown(written)} is zero; accepted: {self.accepted}")
        if self.whole and value.denominator != 1:
            raise ValueError(
                f"{shown(written)} is not a whole number of {next(iter(self.units))}; "
                f"accepted: {self.accepted}"
            )
        return value

    def text(self, value: float | Fraction) -> str:
        """`value` (base unit, above zero) in the unit that gives the shortest whole number."""
        of, parts = Fraction(value).as_integer_ratio()
        ratios = [
            (symbol, of * worth.denominator, parts * worth.numerator)
            for symbol, worth in self.units.items()
        ]
        whole = [f"{up // down} {symbol}" for symbol, up, down in ratios if up % down == 0]
        base = next(symbol for symbol, worth in self.units.items() if worth == 1)
        return min(whole, key=lambda text: len(text.split()[0]), default=f"{float(value):g} {base}")


def _misfit(symbol: str) -> str:
    for what, units in (
        (RATE.what, RATE.units),
        (SIZE.what, SIZE.units),
        (DURATION.what, DURATION.units),
        ("bytes a second, not bits", BYTE_RATE.units),
    ):
        if symbol in units:
            return f"is in {what}"
    close = [u for k in (RATE, SIZE, DURATION) for u in k.units if u.lower() == symbol.lower()]
    hint = f" (did you mean {' or '.join(close)}?)" if close else ""
    return f"has the unknown unit {shown(symbol)}{hint}"


_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

RATE = Kind(
    what="bits a second",
    example="400 Gbit/s",
    units={f"{prefix}bit/s": Fraction(worth) for prefix, worth in _DECIMAL.items()},
    whole=True,
)
SIZE = Kind(
    what="bytes",
    example="1 MiB",
    units={f"{p}B": Fraction(worth) for p, worth in (_DECIMAL | _BINARY).items()},
    whole=True,
)
BYTE_RATE = Kind(
    what="bytes a second",
    example="900 GB/s",
    units={f"{unit}/s": worth for unit, worth in SIZE.units.items()},
    whole=True,
)
DURATION = Kind(
    what="a time",
    example="30 s",
    units={
        "us": Fraction(1, 10**6),
        "ms": Fraction(1, 10**3),
        "s": Fraction(1),
        "min": Fraction(60),
        "h": Fraction(3600),
        "d": Fraction(86400),
        "day": Fraction(86400),
        "days": Fraction(86400),
    },
    whole=False,
)
TEMPERATURE = Kind(
    what="a temperature", example="87 °C", units={"°C": Fraction(1), "C": Fraction(1)}, whole=False
)


def bits_per_s(written: object) -> int:
    """Bits per second of a text such as `400 Gbit/s`; ValueError names the accepted form."""
    return int(RATE.parse(written))


def bytes_per_s(written: object) -> int:
    """Bytes per second of a text such as `900 GB/s`; ValueError names the accepted form."""
    return int(BYTE_RATE.parse(written))


def size_bytes(written: object) -> int:
    """Bytes of a text such as `1 MiB` or `80 GB`; ValueError names the accepted form."""
    return int(SIZE.parse(written))


def duration_s(written: object) -> float:
    """Seconds of a text such as `30 s` or `7 days`; ValueError names the accepted form."""
    return float(DURATION.parse(written))


def degrees_c(written: object) -> float:
    """Degrees Celsius of a text such as `87 °C`; ValueError names the accepted form."""
    return float(TEMPERATURE.parse(written))


def duration_or_none_s(written: object) -> float:
    """As `duration_s`, but `0 s` too."""
    return 0.0 if written == "0 s" else duration_s(written)
