from __future__ import annotations

import ast
import random
import sysconfig
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

from trajgym.envs.sandbox.quick import compile_quickly

QUICK = [
    "1 + 1",
    "x = 48 / 2\nx",
    "import math\nmath.sqrt(16)",
    "for i in range(3):\n    pass\ni",
    "print('a')",
    "x = 1",
    "xs[0] = 1\nx = xs",
    "def f():\n    return 1\n\nf()  # called",
    "from math import pi",
    "assert x == 1, 'no'",
    "text = '''\na\n'''\nlen(text)",
    "[a for a in b]\n",
    "-x",
]
UNSURE = [
    "",
    "# only a comment",
    "x;",
    "a = 1; a",
    "f(\n1\n)",
    '"""\nx = 1\n"""',
    "if x:\n    y",
    "(1 +\nx)",
    "f(\na=1)",
    "x = 1 \\\n+ 1",
    "'abc\\\nx = 1'",
    "a=1\rb",
    "a = (",
    "1 +",
    "print 72",
    "@decorated\nf",
    "In [3]: 1",
    "a\0",
]


def by_tree(code: str) -> tuple[CodeType | None, CodeType | None]:
    """What a syntax tree says is run and shown."""
    tree = ast.parse(code)
    shown = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        shown = compile(ast.Expression(tree.body.pop().value), "cell", "eval", 0, True)
    return (compile(tree, "cell", "exec", 0, True) if tree.body else None), shown


def same(one: CodeType | None, other: CodeType | None) -> bool:
    if one is None or other is None:
        # Comments alone compile to a program that does nothing.
        return all(code is None or (not code.co_names and len(set(code.co_consts)) <= 1) for code in (one, other))
    plain = [[c for c in code.co_consts if not isinstance(c, CodeType)] for code in (one, other)]
    return (
        one.co_code == other.co_code
        and plain[0] == plain[1]
        and one.co_names == other.co_names
        and list(one.co_positions()) == list(other.co_positions())
    )


@pytest.mark.parametrize("code", QUICK)
def test_takes_the_common_forms(code: str) -> None:
    quick = compile_quickly(code, "cell", 0)
    assert quick is not None
    program, shown = by_tree(code)
    assert same(quick[0], program)
    assert same(quick[1], shown)
    assert (quick[1] is None) == (shown is None)


@pytest.mark.parametrize("code", UNSURE)
def test_leaves_the_rest_to_the_tree(code: str) -> None:
    assert compile_quickly(code, "cell", 0) is None


def test_names_the_lines_of_the_cell() -> None:
    quick = compile_quickly("\n\nx = 1\n\ny", "<cell 7>", 0)
    assert quick is not None
    assert quick[1] is not None
    assert quick[1].co_filename == "<cell 7>"
    assert {line for _, _, line in quick[1].co_lines() if line} == {5}


def pieces() -> Iterator[str]:
    """Runs of lines of the standard library, most of which are no programs."""
    chosen = random.Random(0)
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        for _ in range(40):
            start = chosen.randrange(len(lines))
            yield textwrap.dedent("\n".join(lines[start : start + chosen.randrange(1, 12)]))


def test_agrees_with_the_tree_on_real_code() -> None:
    taken = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for code in pieces():
            quick = compile_quickly(code, "cell", 0)
            if quick is not None:
                taken += 1
                program, shown = by_tree(code)
                assert same(quick[0], program), code
                assert same(quick[1], shown), code
    assert taken > 300
