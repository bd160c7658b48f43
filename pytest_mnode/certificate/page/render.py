"""Renders the page of a certificate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any

from pytest_mnode.certificate.certificate import Certificate
from pytest_mnode.certificate.coverage import rate_text
from pytest_mnode.certificate.headline import headline
from pytest_mnode.certificate.page import view
from pytest_mnode.certificate.page.pictures import (
    MISSING,
    Drawn,
    can_draw,
    draw,
    title_of,
    together,
)
from pytest_mnode.certificate.text import fit
from pytest_mnode.charts import Advice, Chart, Map
from pytest_mnode.launchers.hosts import compress

if TYPE_CHECKING:
    import jinja2

_TABLES = (Map, Advice)
"""Charts that need no matplotlib."""


def missing_pictures(certificate: Certificate) -> str:
    """Why the page has no pictures; "" if none is missing."""
    charts = (c for criterion in certificate.criteria for k in criterion.cases for c in k.charts)
    past = certificate.history
    drawn = (
        certificate.coverage.paths
        or (past and view.trend_lines(past))
        or any(isinstance(c, Drawn) and not isinstance(c, _TABLES) for c in charts)
    )
    return MISSING if drawn and not can_draw() else ""


def page_text(certificate: Certificate, asked: datetime | None = None) -> str:
    """The page as HTML 5. Without matplotlib it has no pictures, and says so. asked: see
    `headline`; the page has no script, so that it says for which time it speaks."""
    from markupsafe import Markup

    missing = missing_pictures(certificate)
    number = count(1)

    def pictures(charts: Iterable[Chart]) -> list[tuple[str, Drawn, str]]:
        """Title, chart and drawing of each picture; the template draws `_TABLES`."""
        return [
            (title_of(some[0]), some[0], drawing(some))
            for some in together(charts)
            if not missing or isinstance(some[0], _TABLES)
        ]

    def drawing(charts: Sequence[Drawn]) -> str:
        if isinstance(charts[0], _TABLES):
            return ""
        try:
            return Markup(draw(charts, f"s{next(number)}-"))
        except Exception as error:  # such as matplotlib's many about values of 1e308
            return f"no picture: {error}"

    return _template().render(
        certificate=certificate,
        run=certificate.run,
        headline=headline(certificate, asked),
        pictures=pictures,
        missing=missing,
        most=view.most_listed(certificate.criteria),
    )


@cache
def _template() -> jinja2.Template:
    import jinja2  # imported here, because runs without a page do not need it

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pytest_mnode.certificate.page", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    environment.filters |= {"time": _time, "hosts": compress, "class": _css_class}
    environment.globals |= {
        "questions": view.questions,
        "left_open": view.left_open,
        "not_passed": view.not_passed,
        "path_matrix": view.path_matrix,
        "trend_lines": view.trend_lines,
        "rate": rate_text,
        "word": view.word,
        "share": view.share_of_bound,
        "headline_share": view.headline_share,
        "many": view.MANY,
    }
    return environment.get_template("template.html.j2")


def _finalized(value: Any) -> Any:
    """Text with control characters escaped. Raises TypeError for None, an error of the template."""
    if value is None:
        raise TypeError("the template prints None")
    # Text marked as safe is the template's own.
    return value if hasattr(value, "__html__") else fit(str(value))


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M UTC")


def _css_class(verdict: str) -> str:
    """The CSS class of a verdict: good, bad, unsure, or open if not judged."""
    good, bad = ("pass", "passed", "certified"), ("fail", "failed", "not certified")
    known = dict.fromkeys(good, "good") | dict.fromkeys(bad, "bad")
    quiet = ("not promised", "not rehearsed", "not tested", "recorded")
    return known.get(verdict, "open" if verdict in quiet else "unsure")
