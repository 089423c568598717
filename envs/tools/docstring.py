"""The parts of a google-style docstring that a policy is told."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field

__all__ = ["Docstring"]

_HEADER = re.compile(r"^(\w+( \w+)?):\s*$")
_ENTRY = re.compile(r"^(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")
_PARAMETERS = ("Args", "Arguments", "Parameters")
# What a programmer wants to know of the code, not a policy of the tool.
_LEFT_OUT = ("Raises", "Returns", "Yields", "Source", "Attributes")


@dataclass(frozen=True)
class Docstring:
    """A docstring, read.

    Args:
        description: The text without the sections about parameters, return value and exceptions.
        parameters: Description of each parameter, on one line.
    """

    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str | None) -> Docstring:
        r"""Read a docstring; ``None`` gives an empty one.

        >>> Docstring.read("Look it up.\n\n    Args:\n        row: Row number,\n            from 0.").parameters
        {'row': 'Row number, from 0.'}
        """
        kept: list[str] = []
        entries: list[str] = []
        section = kept
        for line in inspect.cleandoc(text or "").split("\n"):
            header = _HEADER.match(line)
            if header is not None and header[1] in _PARAMETERS:
                section = entries
            elif header is not None and header[1] in _LEFT_OUT:
                section = []
            else:
                if line and not line[0].isspace():
                    section = kept
                section.append(line)
        return cls(re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip(), _entries(entries))


def _entries(lines: list[str]) -> dict[str, str]:
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    out: dict[str, list[str]] = {}
    words: list[str] = []
    for line in lines:
        entry = _ENTRY.match(line.strip())
        if entry is not None and len(line) - len(line.lstrip()) == min(indents):
            words = out.setdefault(entry[1], [])
            line = entry[2]
        words.append(line.strip())
    return {name: " ".join(part for part in parts if part) for name, parts in out.items()}
