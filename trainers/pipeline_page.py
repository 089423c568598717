"""A summary of titles, sentences and tables as Markdown and as one HTML page in which no text can act.

>>> print(as_markdown("Run", [Section("Next", ["Go on."], ["a", "b"], [["1", "x|y"]])]))
# Run
<BLANKLINE>
## Next
<BLANKLINE>
- Go on.
<BLANKLINE>
| a | b |
|---|---|
| 1 | x&#124;y |
<BLANKLINE>
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trajgym.evaluation.page import visible
from trajgym.evaluation.page_template import STYLE

__all__ = ["Section", "as_html", "as_markdown"]


@dataclass(frozen=True)
class Section:
    """A part of the summary; without sentences and rows it is left out.

    Args:
        title: Stands above it.
        sentences: Each on a line of its own.
        head: Names of the table's columns.
        rows: The table; a cell for each column.
    """

    title: str
    sentences: Sequence[str] = ()
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = field(default=())


def as_markdown(title: str, sections: Sequence[Section]) -> str:
    """Return the summary as Markdown; no text in it can break a table or become markup."""
    parts = [f"# {_inert(title)}"]
    for section in sections:
        if not section.sentences and not section.rows:
            continue
        parts.append(f"## {_inert(section.title)}")
        if section.sentences:
            parts.append("\n".join(f"- {_inert(sentence)}" for sentence in section.sentences))
        if section.rows:
            lines = [section.head, *section.rows]
            written = [f"| {' | '.join(map(_inert, line))} |" for line in lines]
            parts.append("\n".join([written[0], f"|{'---|' * len(section.head)}", *written[1:]]))
    return "\n\n".join(parts) + "\n"


def as_html(title: str, sections: Sequence[Section]) -> str:
    """Return the summary as one page: everything is escaped, and the page may load and run nothing."""
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    # What the template calls safe is the style alone.
    environment.finalize = lambda value: value if hasattr(value, "__html__") else visible(str(value))
    shown = [section for section in sections if section.sentences or section.rows]
    return environment.from_string(_TEMPLATE).render(title=title, sections=shown, style=STYLE)


def _inert(text: str) -> str:
    return " ".join(visible(str(text)).split()).translate(_SAFE)


# Characters that make a cell, a tag, a link or code; whatever stands before them, these stay text.
_SAFE = str.maketrans({"|": "&#124;", "<": "&lt;", "[": "&#91;", "`": "'"})

_TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>{{ style | safe }} td, thead th { overflow-wrap: break-word; } li { overflow-wrap: anywhere; }</style>
</head>
<body>
<h1>{{ title }}</h1>
{% for section in sections %}
<h2>{{ section.title }}</h2>
{% if section.sentences %}
<ul>{% for sentence in section.sentences %}<li>{{ sentence }}</li>{% endfor %}</ul>
{% endif %}
{% if section.rows %}
<div class="wide"><table>
<thead><tr>{% for cell in section.head %}<th scope="col">{{ cell }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in section.rows %}<tr>{% for cell in row %}
{% if loop.first %}<th scope="row">{{ cell }}</th>{% else %}<td>{{ cell }}</td>{% endif %}
{% endfor %}</tr>{% endfor %}</tbody>
</table></div>
{% endif %}
{% endfor %}
</body>
</html>
"""
