"""Programs as HTML, for notebooks: a table with a row for each equation, in which inner programs can be unfolded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from anima.config import config
from anima.core.show import Printer, layout, programs_in
from anima.core.source import Source

_LEFT = ' style="text-align:left;vertical-align:top;font-family:monospace"'


def folded(summary: str, body: str, *, opened: bool = False) -> str:
    """HTML under a line of text that shows and hides it."""
    return f"<details{' open' * opened}><summary>{escape(summary)}</summary>{body}</details>"


def verbatim(text: str) -> str:
    """Text in lines of its own, as HTML."""
    return f"<pre>{escape(text)}</pre>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already."""
    head = "".join(f"<th{_LEFT}>{escape(cell)}</th>" for cell in header)
    body = "".join(f"<tr>{''.join(f'<td{_LEFT}>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def program_html(jaxpr: Any, printer: Printer | None = None) -> str:
    """A program: its arguments, a row for each equation with the line that asked for it, its results."""
    printer, jaxpr = printer or Printer(), getattr(jaxpr, "jaxpr", jaxpr)
    takes = " ".join(map(printer.binder, (*jaxpr.constvars, *jaxpr.invars)))
    rows = [_row(eqn, printer) for eqn in jaxpr.eqns]
    gives = " ".join(map(printer.atom, jaxpr.outvars))
    return (f"<div>{verbatim(f'takes {takes}'.rstrip())}"
            f"{table(('result', 'operation', 'of', 'asked for at'), rows) if rows else ''}"
            f"{verbatim(f'gives {gives}'.rstrip())}</div>")


def _row(eqn: Any, printer: Printer) -> Sequence[str]:
    results = " ".join(map(printer.binder, eqn.outvars))
    operands = " ".join(map(printer.atom, eqn.invars))
    inner = "".join(folded(key, program_html(program, printer)) for key, program in programs_in(eqn.params))
    operation = escape(eqn.primitive.name + layout(printer.params(eqn, inner=False))) + inner
    return escape(results), operation, escape(operands), _place(eqn.source)


def _place(source: Source | None) -> str:
    """Where an equation was asked for; a link, if the option source_url_schema says of what form."""
    text, schema = escape(str(source or "")), config.source_url_schema
    if source is None or schema is None:
        return text
    url = schema.replace("{file}", source.file).replace("{line}", str(source.line))
    return f'<a href="{escape(url)}" target="_blank">{text}</a>'
