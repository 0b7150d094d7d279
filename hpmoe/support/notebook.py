"""HTML that a notebook shows of an object: its text, or a table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

SHOWN = 30  # lines of a text; the others are folded
_PRE = "<pre style='line-height:1.25;overflow-x:auto'>{}</pre>"


class NotebookText:
    """Base of objects that a notebook shows as their text, the lines after the first 30 folded."""

    def _repr_html_(self) -> str:
        lines = str(self).splitlines()
        rest = lines[SHOWN:]
        folded = f"<details><summary>{len(rest)} more lines</summary>{_pre(rest)}</details>" if rest else ""
        return _pre(lines[:SHOWN]) + folded


def table_html(title: str, rows: Sequence[Sequence[str]], note: str = "", marked: int | None = None) -> str:
    """Returns a table: its title, the rows of which the first is the head, a note below, and row `marked` in bold.

    Example:
        >>> table_html("bytes", [["", "a"], ["x", "1 < 2"]])
        '<table><caption>bytes</caption><tr><th></th><th>a</th></tr><tr><td>x</td><td>1 &lt; 2</td></tr></table>'
    """
    head, *body = rows
    lines = ["".join(f"<th>{escape(cell)}</th>" for cell in head)]
    lines += ["".join(f"<td>{'<b>' * (i == marked)}{escape(cell)}{'</b>' * (i == marked)}</td>" for cell in row)
              for i, row in enumerate(body)]
    table = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><caption>{escape(title)}</caption>{table}</table>" + (f"<p>{escape(note)}</p>" if note else "")


def _pre(lines: Sequence[str]) -> str:
    return _PRE.format(escape("\n".join(lines)))
