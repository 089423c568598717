"""What counts as the source: itself, unwrapped, or refused."""

from __future__ import annotations

import ast
import contextlib
import time
import warnings

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trajgym.envs.sandbox.source import Refused, is_transcript, prepare

MARKS = [
    *("```", "```python\n", "~~~", "`", ">>> ", "... ", "In [1]: ", "   ...: ", "\n", "\r\n", "\r", "    ", "\t", "\\"),
    *("'", '"', "'''", '"""', "(", ")", "[", "#", "%", "!", "?", "=", "x", "1", "if x:", "\ufeff", "\0", "\ud800", "é"),
]
texts = st.text(alphabet=st.characters()) | st.lists(st.sampled_from(MARKS)).map("".join)


def parses(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(text)
        except (SyntaxError, ValueError):
            return False
    return True


class TestUnchanged:
    @pytest.mark.parametrize(
        "code",
        [
            "",
            "x = 1\r\nprint(x)\r\n",
            "s = '''\n```python\n1\n```\n'''",
            "s = '`a`'",
            's = """\n>>> 1\n"""',
            "x = (7\n%y)",
            "x = 7 \\\n%y",
            "s = '''\n!ls\n%time\nname?\n'''",
            "y = x != 3",
            '"""\n  margin\n"""',
            "if x:\n  pass  # a comment, `quoted`",
        ],
    )
    def test_what_parses(self, code: str) -> None:
        assert prepare(code) == code

    def test_a_byte_order_mark_goes(self) -> None:
        assert prepare("\ufeffprint(1)") == "print(1)"

    @pytest.mark.parametrize(
        "code",
        [
            "The answer is 72",
            "x = (1 + 2",
            "  x = 1\ny = 2",
            "if True:\n\tx = 1\n        y = 2",
            "await f() = 3",
            "Use `48+24` here",
            'def f():\n    """\n```python\nrm()\n```\n"""\n    return (',
            'def f():\n    """\n    >>> rm()\n    """\n    return (',
            "```python\nx = 1\n```\nand\n```python\ny = 2\n```",
            "```python\nx = 1\n```\nand\n```python\ny = 2",
            "s = 'never closed\nx = '!ls'",
            "print(\n!x",
            "x != \n!= 3",
            "y = = 7 \\\n%z",
            "y = = (7\n%z)",
            "s = ''' !ls\n!ls\n%time",
        ],
    )
    def test_what_nothing_helps(self, code: str) -> None:
        assert prepare(code) == code

    def test_too_deep_for_the_parser(self) -> None:
        code = "-" * 200_000 + "1"
        assert prepare(code) == code


class TestUnwrapped:
    @pytest.mark.parametrize(
        "code",
        [
            "```python\n48+24\n```",
            "```\n48+24\n```",
            "~~~py\n48+24\n~~~",
            "````Python3\n48+24\n````",
            "``` {python .numbered}\r\n48+24\r\n```\r\n",
            "\n  ```python\n  48+24\n  ```\n",
            "Here is the code:\n\n```python\n48+24\n```\nIt's 72, isn't it?",
            "```python\n48+24",
            "48+24\n```",
            "`48+24`",
            "  ``48+24``\n",
            "```48+24```",
            "```python 48+24```",
            "    48+24",
            ">>> 48+24\n72",
            "  >>> 48+24\n  72\n",
            ">>>48+24",
            "In [3]: 48+24\nOut[3]: 72",
            "```python\n>>> 48+24\n72\n```",
            "```\n\ufeff    48+24\n```",
        ],
    )
    def test_one_expression(self, code: str) -> None:
        assert prepare(code).strip() == "48+24"

    @pytest.mark.parametrize(
        ("code", "source"),
        [
            (">>> def f(x):\n...     return x\n...\n>>> f(1)\n1\n", "def f(x):\n    return x\n\nf(1)"),
            ("In [1]: for i in x:\n   ...:     print(i)\n   ...:\n0\n", "for i in x:\n    print(i)\n"),
            (">>> 1/0\nTraceback (most recent call last):\n  ...\nZeroDivisionError: no\n>>> 2", "1/0\n2"),
            ("  x = 1\n\n  if x:\n    y = 2\n", "x = 1\n\nif x:\n  y = 2\n"),
            ("  # note\n  x = '''\nfree\n'''\n# far left\n  x", "# note\nx = '''\nfree\n'''\n# far left\nx"),
            ("\tx = (1,\n2)\n\tx", "x = (1,\n2)\nx"),
            ("```python\ns = '''\n```\n'''\ns\n```", "s = '''\n```\n'''\ns"),
            ("```\n```", ""),
            (">>> ", ""),
        ],
    )
    def test_several_lines(self, code: str, source: str) -> None:
        assert prepare(code) == source

    def test_the_error_shown_is_that_of_the_code(self) -> None:
        assert prepare("Look:\n```python\nx = = 1\n```") == "x = = 1"


class TestRefused:
    @pytest.mark.parametrize(
        ("code", "named"),
        [
            ("%timeit 1+1", "%timeit"),
            ("%%bash\necho 'it", "%%bash"),
            ("!ls /", "!ls /"),
            ("!!ls", "!!ls"),
            ("x = 1\nfor i in y:\n    !echo {i}", "!echo {i}"),
            ("files = !ls", "files = !ls"),
            ("a, b = %time f()", "a, b = %time f()"),
            ("?print", "?print"),
            ("x = 1\nx.real??\ny = 2", "x.real??"),
            ("```python\n!pip install x\nimport x\n```", "!pip install x"),
            (">>> %matplotlib inline", "%matplotlib"),
            ("s = 'it''s' # it's\n%time", "%time"),
            ("s = '''\n'\\''''\n%time", "%time"),
        ],
    )
    def test_notebook_notation(self, code: str, named: str) -> None:
        with pytest.raises(Refused, match="not available") as refused:
            prepare(code)
        assert refused.value.kind == "unsupported_magic"
        assert repr(named) in refused.value.message

    @pytest.mark.parametrize(("code", "named"), [("a=1\0", "NUL"), ("'\0'", "NUL"), ("'\udfff'", "U\\+DFFF")])
    def test_characters(self, code: str, named: str) -> None:
        with pytest.raises(Refused, match=named) as refused:
            prepare(code)
        assert refused.value.kind == "invalid_source"


class TestAnyText:
    @given(texts)
    @example("`\ufeffx`")
    @example("```\n" * 9)
    def test_twice_is_once(self, text: str) -> None:
        try:
            once = prepare(text)
        except Refused:
            return
        assert prepare(once) == once

    @given(texts)
    def test_what_parses_is_not_touched(self, text: str) -> None:
        if parses(text) and not text.startswith("\ufeff") and not is_transcript(text):
            assert prepare(text) == text

    @given(st.lists(st.sampled_from(["x = 1", "print('a')", "if x:\n    y = '`'", "s = '''\n a\n'''"])))
    def test_every_wrapping_comes_off(self, statements: list[str]) -> None:
        source = "\n".join(statements)
        assert prepare(f"```python\n{source}\n```") == source
        assert ast.dump(ast.parse(prepare("Code:\n~~~\n" + source + "\n~~~\n"))) == ast.dump(ast.parse(source))

    @pytest.mark.parametrize(
        "unit",
        [
            *(
                "`",
                "```\n",
                "~~~\n",
                " ",
                "\t\n",
                "'",
                '"',
                "'''",
                "\\",
                "\\\n",
                "%",
                "!x\n=",
                "?\n",
                ">>> \n",
                "... \n",
                "#",
            ),
            *("x ", "x, ", "[\n", "x = (\n", "é", "\r", "'\\", "In [", "x?", "a.b ", "In [1]: \n"),
        ],
    )
    def test_time_is_linear(self, unit: str) -> None:
        def took(size: int) -> float:
            text = "= " + unit * (size // len(unit)) + "\n="
            seconds = []
            for _ in range(3):  # the best of them: the machine may be busy with something else
                start = time.process_time()
                with contextlib.suppress(Refused):
                    prepare(text)
                seconds.append(time.process_time() - start)
            return min(seconds)

        # Ten times the length took a hundred times as long if anything was quadratic.
        assert took(300_000) < 40 * max(took(30_000), 0.01)
