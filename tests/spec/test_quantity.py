from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.spec.quantity import (
    BYTE_RATE,
    DURATION,
    RATE,
    SIZE,
    Kind,
    bits_per_s,
    duration_s,
    size_bytes,
)

KINDS = [RATE, BYTE_RATE, SIZE, DURATION]


@pytest.mark.parametrize(
    ("written", "bits"),
    [("200 Mbit/s", 200_000_000), ("400Gbit/s", 400 * 10**9), ("1.6 Tbit/s", 1_600 * 10**9)],
)
def test_rates_are_decimal_bits(written: str, bits: int) -> None:
    assert bits_per_s(written) == bits


@pytest.mark.parametrize(
    ("written", "count"),
    [("1 MiB", 1 << 20), ("1 MB", 10**6), ("1.5 KiB", 1536), ("80 GB", 80 * 10**9), ("7 B", 7)],
)
def test_sizes_distinguish_binary_and_decimal_units(written: str, count: int) -> None:
    assert size_bytes(written) == count


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("5 us", 5e-6),
        ("250 ms", 0.25),
        ("30 s", 30),
        ("2 min", 120),
        ("1.5 h", 5400),
        ("1 day", 86400),
        ("7 days", 604800),
        ("7 d", 604800),
    ],
)
def test_durations_are_seconds(written: str, seconds: float) -> None:
    assert duration_s(written) == seconds


@pytest.mark.parametrize(
    ("kind", "written", "message"),
    [
        (RATE, 200, "200 has no unit; accepted: bits a second, such as '400 Gbit/s' (units bit/s"),
        (RATE, "200", "'200' has no unit; "),
        (RATE, True, "True is not bits a second; "),
        (RATE, "-5 Mbit/s", "'-5 Mbit/s' is not bits a second; "),
        (RATE, "fast", "'fast' is not bits a second; "),
        (RATE, None, "None is not bits a second; "),
        (RATE, "400 GB/s", "'400 GB/s' is in bytes a second, not bits; "),
        (RATE, "400 GiB/s", "'400 GiB/s' is in bytes a second, not bits; "),
        (RATE, "400 Gb/s", "'400 Gb/s' has the unknown unit 'Gb/s'; "),
        (RATE, "5 mbit/s", "'5 mbit/s' has the unknown unit 'mbit/s' (did you mean Mbit/s?); "),
        (RATE, "0 bit/s", "'0 bit/s' is zero; "),
        (RATE, "0.5 bit/s", "'0.5 bit/s' is not a whole number of bit/s; "),
        (RATE, "1 Gbit/s ", "'1 Gbit/s ' is not bits a second; "),
        (RATE, "9" * 90 + " bit/s", f"'{'9' * 56}... is not bits a second; "),
        (SIZE, "1 Gbit/s", "'1 Gbit/s' is in bits a second; accepted: bytes, such as '1 MiB'"),
        (SIZE, "1 KB", "'1 KB' has the unknown unit 'KB' (did you mean kB?); "),
        (SIZE, "1 mb", "'1 mb' has the unknown unit 'mb' (did you mean MB?); "),
        (SIZE, "0.3 B", "'0.3 B' is not a whole number of B; "),
        (SIZE, "٣ MB", "'٣ MB' is not bytes; "),
        (DURATION, "30 MB", "'30 MB' is in bytes; accepted: a time, such as '30 s' (units us, "),
        (DURATION, "30 weeks", "'30 weeks' has the unknown unit 'weeks'; "),
    ],
)
def test_a_wrong_quantity_says_why_and_names_the_form(
    kind: Kind, written: object, message: str
) -> None:
    with pytest.raises(ValueError, match=r"; accepted: ") as caught:
        kind.parse(written)
    assert str(caught.value).startswith(message)


@given(st.sampled_from(KINDS), st.data())
def test_text_and_parse_are_inverse(kind: Kind, data: st.DataObject) -> None:
    unit = data.draw(st.sampled_from(list(kind.units)))
    number = data.draw(st.integers(1, 10**9))
    value = kind.parse(f"{number} {unit}")
    assert value == number * kind.units[unit]
    assert kind.parse(kind.text(value)) == value


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (RATE, 200_000_000, "200 Mbit/s"),
        (RATE, 1_600_000_000_000, "1600 Gbit/s"),
        (SIZE, 1 << 20, "1 MiB"),
        (SIZE, 80 * 10**9, "80 GB"),
        (SIZE, 1_000_001, "1000001 B"),
        (DURATION, 604800, "7 d"),
        (DURATION, Fraction(1, 4), "250 ms"),
        (DURATION, 1 / 3, "0.333333 s"),
    ],
)
def test_text_of_a_quantity_is_readable(kind: Kind, value: float, text: str) -> None:
    assert kind.text(value) == text


@given(
    st.sampled_from(KINDS),
    st.one_of(
        st.text(),
        st.integers(),
        st.floats(),
        st.none(),
        st.lists(st.text()),
        st.from_regex(r"[0-9.]{0,25} ?[kMGT]?i?(B|bit/s|s|day)"),
    ),
)
def test_anything_is_a_quantity_above_zero_or_a_value_error(kind: Kind, written: object) -> None:
    try:
        value: Fraction | ValueError = kind.parse(written)
    except ValueError as error:
        value = error
    if isinstance(value, Fraction):
        assert value > 0
    else:
        assert kind.accepted in str(value)
        assert str(value).isprintable()
