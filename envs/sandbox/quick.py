"""A short cut for the cells that are most common: the last line alone says whether there is a value to show.

A syntax tree in Python is many objects, made and read back, which takes longer than compiling. Where the text tells as
much, the tree is not needed; where it does not for certain, :func:`compile_quickly` leaves the cell to it.
"""

from __future__ import annotations

import re
from types import CodeType

__all__ = ["compile_quickly"]

# A line that begins a statement which is no expression, and holds nothing that could belong to an earlier line: no
# closing bracket (see below), no end of a triple-quoted string.
_STATEMENT = re.compile(
    r"(?:import|from|pass|del|assert|raise|global)\b|[A-Za-z_]\w*\s*(?:[-+*/%&|^@]|//|\*\*|>>|<<)?=(?!=)"
)
_UNSURE = ('"""', "'''", ";", "\\")

_compile, _SyntaxError, _ValueError = compile, SyntaxError, ValueError


def compile_quickly(code: str, name: str, flags: int) -> tuple[CodeType | None, CodeType | None] | None:
    """Compile a cell if its last line stands for itself.

    Args:
        code: The cell.
        name: Its file name in tracebacks.
        flags: Compiler flags that earlier cells have set.

    Returns:
        What runs (``None`` for nothing) and what is evaluated and shown (likewise), or ``None`` if only a syntax tree
        can tell the two apart, or the cell does not compile.
    """
    if "\r" in code or "\f" in code:
        return None
    text = code.rstrip()
    start = text.rfind("\n") + 1
    line = text[start:]
    if (
        not line
        or text[:start].endswith("\\\n")
        or not (line[0].isalnum() or line[0] in "_([{\"'-")
        or any(mark in line for mark in _UNSURE)
    ):
        return None
    try:
        if _STATEMENT.match(line):
            return (_compile(text, name, "exec", flags, True), None) if _opens_before_it_closes(line) else None
        # That the line is an expression, and what stands before it a whole program, leaves no other reading of the two.
        # The blank lines give the expression its line number.
        shown = _compile("\n" * text.count("\n", 0, start) + line, name, "eval", flags, True)
        before = text[:start]
        return (_compile(before, name, "exec", flags, True) if before.strip() else None), shown
    except (_SyntaxError, _ValueError):
        return None


def _opens_before_it_closes(line: str) -> bool:
    """Whether no bracket of the line closes one of an earlier line; brackets in strings make it unsure."""
    depth = 0
    for character in line:
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth < 0:
                return False
    return True
