"""Errors are told with the caller's frames alone, whatever their classes do."""

from __future__ import annotations

import linecache
from collections.abc import Iterator

import pytest

from trajgym.envs.sandbox.traces import Description, cell_name, describe, exact

NAME = cell_name(1)


@pytest.fixture(autouse=True)
def _forget_the_source() -> Iterator[None]:
    yield
    linecache.cache.pop(NAME, None)


def error_of(source: str) -> Description:
    linecache.cache[NAME] = (len(source), None, source.splitlines(keepends=True), NAME)
    try:
        exec(compile(source, NAME, "exec", dont_inherit=True), {"__name__": "__main__"})
    except BaseException as error:
        return describe(error)
    raise AssertionError("it raised nothing")


class TestFrames:
    def test_a_plain_error(self) -> None:
        told = error_of("def f(x):\n    return 1 / x\nf(0)\n")
        assert told.type == "ZeroDivisionError"
        assert told.message == "division by zero"
        lines = [line for line in told.traceback.splitlines() if set(line) - set(" ^~")]
        assert lines == [
            "Traceback (most recent call last):",
            '  File "<cell 1>", line 3, in <module>',
            "    f(0)",
            '  File "<cell 1>", line 2, in f',
            "    return 1 / x",
            "ZeroDivisionError: division by zero",
        ]

    @pytest.mark.parametrize(
        ("source", "shown"),
        [
            ("import json\njson.loads('{')", ["    json.loads('{')", "json.decoder.JSONDecodeError: "]),
            (
                "import json\ntry:\n    json.loads('{')\nexcept ValueError as e:\n    raise KeyError(1) from e",
                ["    json.loads('{')", "direct cause", "KeyError: 1"],
            ),
            (
                "import json\ntry:\n    json.loads('{')\nexcept ValueError as e:\n    1/0",
                ["    json.loads('{')", "During handling", "ZeroDivisionError"],
            ),
            (
                "import json\ndef f(): return json.loads('{')\nes = []\nfor i in range(2):\n    try: f()\n"
                "    except Exception as e: es.append(e)\nraise ExceptionGroup('two', es)",
                ["ExceptionGroup: two (2 sub-exceptions)", "    raise ExceptionGroup('two', es)", "return json.loads"],
            ),
            (
                "import ast\nast.literal_eval('1 +')",
                ["    ast.literal_eval('1 +')", '  File "<unknown>", line 1', "SyntaxError: invalid syntax"],
            ),
            ("e = ValueError('a')\ne.add_note('a note')\nraise e", ["ValueError: a\na note"]),
        ],
    )
    def test_nobody_elses(self, source: str, shown: list[str]) -> None:
        trace = error_of(source).traceback
        for text in shown:
            assert text in trace
        files = {line.split('"')[1] for line in trace.splitlines() if line.lstrip(" |").startswith("File ")}
        assert files <= {"<cell 1>", "<unknown>"}

    def test_no_frame_no_heading(self) -> None:
        with pytest.raises(ValueError, match="invalid literal") as raised:
            int("x")
        assert describe(raised.value).traceback == "ValueError: invalid literal for int() with base 10: 'x'\n"

    @pytest.mark.parametrize(
        ("source", "lines"),
        [
            ("x = 1\nprint('a", ['  File "<cell 1>", line 2', "    print('a", "          ^"]),
            ("x = 1\nreturn 72", ['  File "<cell 1>", line 2', "    return 72", "    ^^^^^^^^^"]),
        ],
    )
    def test_syntax_errors(self, source: str, lines: list[str]) -> None:
        told = error_of(source)
        assert told.type == "SyntaxError"
        assert told.traceback.splitlines()[:-1] == lines
        assert "<cell 1>, line 2" in told.message

    def test_deep_recursion_is_folded(self) -> None:
        trace = error_of("def f():\n    return f()\nf()").traceback
        assert "[Previous line repeated " in trace
        assert trace.count("return f()") == 3

    def test_alternating_recursion_is_cut(self) -> None:
        trace = error_of("def f():\n    return g()\ndef g():\n    return f()\nf()").traceback
        assert len(trace) <= 8_000
        assert "characters dropped" in trace
        assert trace.startswith("Traceback (most recent call last):\n")
        assert trace.rstrip().splitlines()[-1].startswith("RecursionError: maximum recursion depth exceeded")


class TestHostileErrors:
    @pytest.mark.parametrize("raised", ["SystemExit", "ValueError('no')", "KeyboardInterrupt", "self"])
    def test_a_message_that_raises(self, raised: str) -> None:
        told = error_of(f"class E(Exception):\n    def __str__(self):\n        raise {raised}\nraise E()")
        assert told[:2] == ("E", "<the message could not be shown>")
        assert "<cell 1>" in told.traceback

    def test_a_message_that_is_no_string(self) -> None:
        assert error_of("class E(Exception):\n    def __str__(self): return 5\nraise E()")[0] == "E"

    def test_a_metaclass_that_hides_the_name(self) -> None:
        told = error_of(
            "class M(type):\n    __name__ = property(lambda c: 1/0)\n"
            "class E(Exception, metaclass=M): pass\nraise E('a')"
        )
        assert told[:2] == ("E", "a")

    @pytest.mark.parametrize("name", ["__traceback__", "__cause__", "__context__", "__notes__", "__class__"])
    def test_attributes_that_raise(self, name: str) -> None:
        told = error_of(f"class E(Exception):\n    {name} = property(lambda e: 1/0)\nraise E('a')")
        assert told[:2] == ("E", "a")
        assert told.traceback.endswith("E: a\n")

    def test_strings_with_methods_of_their_own(self) -> None:
        told = error_of(
            "class S(str):\n    def __len__(self): 1/0\n    def __getitem__(self, k): 1/0\n"
            "class E(Exception):\n    def __str__(self): return S('a')\nraise E()"
        )
        assert told[:2] == ("E", "a")
        assert type(told.message) is str

    def test_lengths(self) -> None:
        told = error_of("raise type('N' * 9000, (Exception,), {})('m' * 90_000)")
        assert len(told.type) <= 200
        assert len(told.message) <= 2_000
        assert len(told.traceback) <= 8_000


def test_exact() -> None:
    class Text(str):
        __slots__ = ()

    assert type(exact(Text("a"))) is str
    assert exact(Text("a")) == "a"
