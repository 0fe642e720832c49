"""Results in a notebook: a small table, with everything that came from outside escaped."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "") -> str:
    head = "".join(f"<th style='text-align:left'>{escape(one)}</th>" for one in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(shown(one))}</td>" for one in row) + "</tr>" for row in rows)
    caption = f"<caption style='text-align:left'>{escape(title)}</caption>" if title else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def shown(value: Any) -> str:
    """A figure as a person would write it."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3f}"
    return f"{value:,}" if type(value) is int else str(value)
