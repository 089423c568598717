"""Cells in a Notebook, each test in a process of its own: a Notebook takes over ``__main__`` and the streams."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DRIVER = Path(__file__).with_name("notebook_driver.py")
MIB = 1 << 20

FIELDS = {
    "status": str,
    "value": str,
    "tail": str,
    "dropped": int,
    "type": str,
    "message": str,
    "traceback": str,
    "exit_code": int,
    "output": str,
}


def run(*codes: str, **options: Any) -> list[dict[str, Any]]:
    """Run cells and return their replies, each with its output; fewer if the process ended."""
    command = [sys.executable, "-I", "-S", str(DRIVER)]
    done = subprocess.run(
        command, input=json.dumps({"codes": codes, **options}), capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    for reply in replies:
        assert {name: type(value) for name, value in reply.items()} == FIELDS
    return replies


def last(*codes: str, **options: Any) -> dict[str, Any]:
    replies = run(*codes, **options)
    assert len(replies) == len(codes)
    return replies[-1]


class TestValue:
    @pytest.mark.parametrize(
        ("code", "value"),
        [
            ("48 + 24", "72"),
            ("x = 72\nx", "72"),
            ("'a'", "'a'"),
            ("a = 1; b = 2; a + b", "3"),
            ("(1,\n 2)", "(1, 2)"),
            ("x = 72", ""),
            ("None", ""),
            ("", ""),
            ("# nothing", ""),
            ("for i in range(3):\n    i", ""),
            ("72;", ""),
            ("72;  # a comment", ""),
            ("(72) ;\n\n# the end\n", ""),
            ("72 \\\n;", ""),
            ("'é😀'; 'é😀';", ""),
            ("x = 1; 'a;'", "'a;'"),
            ("72  # not silenced;", "72"),
            ("x = 1\r\n72;\r\n", ""),
            ("```python\n>>> 48 + 24\n72\n```", "72"),
            ("In [3]: 48 + 24\nOut[3]: 72", "72"),
        ],
    )
    def test_the_last_expression(self, code: str, value: str) -> None:
        reply = last(code)
        assert (reply["status"], reply["value"], reply["output"]) == ("ok", value, "")

    def test_nothing_is_evaluated_twice(self) -> None:
        replies = run("print('once')\nx = [0]\nx.append(1) or x", "x", "print('a'); y = = 1")
        assert [r["output"] for r in replies] == ["once\n", "", ""]
        assert [r["value"] for r in replies] == ["[0, 1]", "[0, 1]", ""]

    def test_a_long_value_keeps_both_ends(self) -> None:
        reply = last("'x' * 10**7 + 'y'", limit=40)
        assert reply["value"] == "'" + "x" * 19
        assert reply["tail"] == "x" * 18 + "y'"
        assert reply["dropped"] == 10**7 + 3 - 40

    def test_repr_is_the_callers(self) -> None:
        code = "class T:\n    def __repr__(self):\n        raise ValueError('no')\nT()"
        reply = last(code)
        assert (reply["status"], reply["type"]) == ("error", "ValueError")
        assert 'File "<cell 1>", line 3, in __repr__' in reply["traceback"]
        assert "cell.py" not in reply["traceback"]

    def test_repr_may_return_a_strange_string(self) -> None:
        code = "class S(str):\n    def __len__(self): 1/0\nclass T:\n    def __repr__(self): return S('hi')\nT()"
        assert last(code)["value"] == "hi"


class TestNamespace:
    @pytest.mark.parametrize(
        ("codes", "value"),
        [
            (["x = 48", "x + 24"], "72"),
            (["def f(n):\n    return 1 if n < 2 else n * f(n - 1)", "f(5)"], "120"),
            (["import math\ndef f(): return math.sqrt(16)", "f()"], "4.0"),
            (["n = 2\nclass A:\n    def f(self): return [n * y for y in range(3)]", "A().f()"], "[0, 2, 4]"),
            (["def f():\n    global g\n    g = 7\nf()", "g"], "7"),
            (["x = 1\n1/0", "x"], "1"),
            (["x = 1\nexit(3)", "x"], "1"),
            (["x = 1\nraise KeyboardInterrupt", "x"], "1"),
            (["__name__"], "'__main__'"),
            (["from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int", "P(3)"], "P(x=3)"),
            (["import pickle\nclass P: x = 1", "pickle.loads(pickle.dumps(P())).x"], "1"),
            (["import inspect\ndef f(): return 72", "inspect.getsource(f)"], "'def f(): return 72\\n'"),
            (["def f(x: int): pass", "f.__annotations__"], "{'x': <class 'int'>}"),
            (["from __future__ import annotations", "def f(x: int): pass\nf.__annotations__"], "{'x': 'int'}"),
            (["globals() is locals()"], "True"),
            (["print = 5", "del print\nprint"], "<built-in function print>"),
            (["import builtins\nbuiltins.mine = 72", "mine"], "72"),
            (["import sys\nsys.setrecursionlimit(5000)", "def f(n): return n and 1 + f(n - 1)\nf(3000)"], "3000"),
        ],
    )
    def test_names_live_on(self, codes: list[str], value: str) -> None:
        assert last(*codes)["value"] == value

    def test_many_cells(self) -> None:
        cells = [f"def f{i}(): return 1/0" for i in range(300)]
        replies = run(*cells, "f299()", "f0()", "import linecache\nlen(linecache.cache) < 300")
        assert "    return 1/0" in replies[300]["traceback"] or "def f299(): return 1/0" in replies[300]["traceback"]
        assert 'File "<cell 1>", line 1, in f0\nZeroDivisionError' in replies[301]["traceback"]
        assert replies[302]["value"] == "True"


class TestStreams:
    def test_both_streams_in_order(self) -> None:
        code = "import sys, os\nprint('a', end='')\nsys.stderr.write('b')\nos.write(1, b'c')\nprint('d');"
        assert last(code)["output"] == "abcd\n"

    def test_nothing_waits_in_a_buffer(self) -> None:
        assert last("import os\nprint('a', end='')\nos.pread(1, 9, 0)")["value"] == "b'a'"

    def test_what_the_cells_own_stream_holds_back_is_written(self) -> None:
        code = "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer)\nkept = sys.stdout\nprint('held')"
        replies = run(code, "print('next')")
        assert [r["output"] for r in replies] == ["held\n", "next\n"]

    def test_any_text_and_any_bytes(self) -> None:
        assert last("print('\\ud800é😀')")["output"] == "\\ud800é😀\n"
        assert last("import sys\nsys.stdout.buffer.write(b'\\xff');")["output"] == "\ufffd"

    def test_warnings_are_output(self) -> None:
        output = last("import warnings\nwarnings.warn('careful')")["output"]
        assert "<cell 1>:2: UserWarning: careful" in output

    def test_input_is_at_its_end(self) -> None:
        reply = last("input('n? ')")
        assert (reply["status"], reply["type"], reply["output"]) == ("error", "EOFError", "n? ")
        assert last("import sys\nsys.stdin.read()")["value"] == "''"


class TestEndings:
    def test_an_error(self) -> None:
        reply = last("print('before')\nint('x')")
        assert (reply["status"], reply["type"], reply["output"]) == ("error", "ValueError", "before\n")
        assert reply["message"] == "invalid literal for int() with base 10: 'x'"
        assert reply["traceback"].startswith(
            'Traceback (most recent call last):\n  File "<cell 1>", line 2, in <module>'
        )

    @pytest.mark.parametrize("name", ["KeyboardInterrupt", "GeneratorExit", "BaseException", "StopIteration"])
    def test_every_exception_is_the_callers(self, name: str) -> None:
        reply, after = run(f"raise {name}('a')", "1")
        assert (reply["status"], reply["type"], reply["message"], after["value"]) == ("error", name, "a", "1")

    @pytest.mark.parametrize(
        ("code", "kind"),
        [
            ("print('a", "SyntaxError"),
            ("  x = 1\ny = 2", "IndentationError"),
            ("if True:\n\tx = 1\n        y = 2", "TabError"),
            ("return 72", "SyntaxError"),
            ("await f()", "SyntaxError"),
            ("(" * 1000 + ")" * 1000, "SyntaxError"),
        ],
    )
    def test_sources_that_cannot_be_compiled(self, code: str, kind: str) -> None:
        reply = last(code)
        assert (reply["status"], reply["type"]) == ("error", kind)
        assert "cell.py" not in reply["traceback"]

    def test_a_source_too_deep_for_the_parser(self) -> None:
        reply, after = run("-" * 200_000 + "1", "72")
        assert (reply["status"], reply["type"]) in [("memory", "MemoryError"), ("error", "RecursionError")]
        assert after["value"] == "72"

    @pytest.mark.parametrize(
        ("code", "status", "output"),
        [
            ("exit()", 0, ""),
            ("quit(3)", 3, ""),
            ("raise SystemExit", 0, ""),
            ("import sys\nsys.exit(True)", 1, ""),
            ("import sys\nsys.exit(-1)", 255, ""),
            ("import sys\nsys.exit(10**5000 + 7)", 7, ""),
            ("import sys\nsys.exit('bye')", 1, "bye\n"),
            ("class E(SystemExit):\n    code = property(lambda e: 1/0)\nraise E(7)", 7, ""),
            ("class T:\n    def __str__(self): 1/0\nexit(T())", 1, ""),
        ],
    )
    def test_exit(self, code: str, status: int, output: str) -> None:
        reply, after = run(code, "input and 72")
        assert (reply["status"], reply["exit_code"], reply["output"]) == ("exit", status, output)
        assert after["value"] == "72"

    @pytest.mark.parametrize(("code", "kind"), [("%timeit 1+1", "unsupported_magic"), ("a=1\0", "invalid_source")])
    def test_refused(self, code: str, kind: str) -> None:
        reply = last(code)
        assert (reply["status"], reply["type"], reply["traceback"]) == ("refused", kind, "")
        assert reply["message"]

    @pytest.mark.parametrize(
        "code",
        [
            "x = 'a' * 10**10",
            "a = []\nwhile True: a.append(bytearray(10**6))",
            "a = []\nwhile True: a.append([0])",
            "a = []\nwhile True: a.append('x' * 600)",
            "def f(): return [{} for i in range(10**9)]\nf()",
            "class T:\n    def __repr__(self): return 'x' * 10**10\nT()",
            "raise MemoryError",
            "class E(MemoryError):\n    def __str__(self): raise self\nraise E",
        ],
    )
    def test_memory_runs_out(self, code: str) -> None:
        replies = run(code, "1 + 1", "print('next')", "1/0", memory=64 * MIB)
        assert [r["status"] for r in replies] == ["memory", "ok", "ok", "error"]
        assert [r["value"] + r["output"] + r["type"] for r in replies[1:]] == ["2", "next\n", "ZeroDivisionError"]


DAMAGE = {
    "no stream": "import sys\nsys.stdout = sys.stderr = sys.stdin = None",
    "deleted streams": "import sys\ndel sys.stdout, sys.stderr, sys.stdin",
    "closed streams": "import sys\nsys.stdout.close(); sys.stdin.close()",
    "detached stream": "import sys\nsys.stdout.detach();",
    "patched stream": "import sys\nsys.stdout.write = lambda text: 1/0",
    "buffered stream": "import sys\nsys.stdout.reconfigure(write_through=False, encoding='ascii')",
    "builtins replaced": "import builtins\n"
    "for name in 'print len repr str type eval exec getattr BaseException'.split():\n    setattr(builtins, name, 0)",
    "builtins removed": "import builtins\nvars(builtins).clear()",
    "builtins removed, and an error": "import builtins\nvars(builtins).clear()\nmissing",
    "no builtins": "del __builtins__",
    "other builtins": "__builtins__ = {}",
    "no globals": "globals().clear()",
    "no modules": "import sys\nsys.modules.clear()",
    "other modules": "import sys\nsys.modules = {}",
    "no main": "import sys\ndel sys.modules['__main__']",
    "patched modules": "import json, os, io\njson.dumps = os.write = os.read = io.TextIOWrapper = io.FileIO = None",
    "patched traceback": "import sys, traceback, linecache\ndel sys.modules['traceback']\n"
    "traceback.TracebackException = traceback.StackSummary.format = linecache.getline = linecache.cache = None\n1/0",
    "trace": "import sys, threading\ndef f(*a): raise ValueError\nthreading.settrace(f); sys.settrace(f)",
    "profile": "import sys, threading\ndef f(*a): raise ValueError\nthreading.setprofile(f); sys.setprofile(f)",
    "hooks": "import sys\nsys.excepthook = sys.displayhook = sys.unraisablehook = None",
    "low recursion limit": "import sys\nfor i in range(1, 99):\n    try: sys.setrecursionlimit(i); break\n"
    "    except RecursionError: pass\n1/0",
    "no garbage collection": "import gc\ngc.disable()",
    "warnings": "import warnings\nwarnings.simplefilter('error')\nwarnings.filters = warnings.warn = None",
    "another folder": "import os\nos.chdir('/')",
    "locale": "import locale\nlocale.setlocale(locale.LC_ALL, 'C')",
    "no paths": "import sys\nsys.path.clear(); sys.meta_path.clear()",
    "signals": "import signal\nfor s in (2, 10, 14, 15): signal.signal(s, lambda *a: 1/0)",
    "damage while an error is told": "class E(Exception):\n    def __str__(self):\n        import sys, builtins\n"
    "        sys.stdout = None\n        builtins.len = None\n        sys.setprofile(lambda *a: 1/0)\nraise E",
    "a profile function that waits": "import sys\ncalls = []\ndef f(*a):\n    calls.append(a)\n"
    "    if len(calls) > 20: raise ValueError\nclass E(Exception):\n    def __str__(self):\n        sys.setprofile(f)\n"
    "        return 'a'\nraise E",
}


@pytest.mark.parametrize("code", DAMAGE.values(), ids=DAMAGE.keys())
def test_the_next_cell_works(code: str) -> None:
    check = (
        "import sys, gc\nclass C: pass\nprint('shown', __name__)\n"
        "[len('ab'), C.__module__, sys.gettrace(), sys.getprofile(), gc.isenabled(), sys.modules['__main__'].C is C]"
    )
    reply = last(code, check, "1/0")
    assert (reply["status"], reply["type"]) == ("error", "ZeroDivisionError")
    reply = last(code, check)
    assert (reply["status"], reply["output"]) == ("ok", "shown __main__\n"), reply
    assert reply["value"] == "[2, '__main__', None, None, True, True]"
    assert "é" in last(code, "print('é')", "print('é')")["output"]


def test_a_hook_that_forbids_everything_ends_the_process() -> None:
    command = [sys.executable, "-I", "-S", str(DRIVER)]
    order = {"codes": ["import sys\nsys.addaudithook(lambda *a: 1/0)", "1 + 1"]}
    done = subprocess.run(command, input=json.dumps(order), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert last("import sys\nsys.addaudithook(lambda *a: None)", "1 + 1")["value"] == "2"


class TestSeed:
    DRAWS = (
        "import os, random, secrets, uuid\n[random.random(), os.urandom(8), secrets.token_hex(8), uuid.uuid4(), "
        "random.SystemRandom().random(), secrets.randbelow(10**9), os.urandom(0)]"
    )

    def test_the_same_seed_gives_the_same(self) -> None:
        first = last(self.DRAWS, seed=7)["value"]
        assert last(self.DRAWS, seed=7)["value"] == first
        assert last(self.DRAWS, seed=8)["value"] != first
        assert first.endswith(", b'']")

    def test_numpy(self) -> None:
        spec = importlib.util.find_spec("numpy")
        assert spec is not None
        assert spec.origin is not None
        options = {"packages": str(Path(spec.origin).parents[1]), "preload": ["numpy.random"]}
        code = "import numpy as np\n[np.random.rand(), np.random.default_rng().random()]"
        first = last(code, seed=2**40 + 7, **options)["value"]
        assert last(code, seed=2**40 + 7, **options)["value"] == first
        assert last(code, seed=8, **options)["value"] != first


def test_threads_of_a_cell() -> None:
    code = "import threading\nout = []\nt = threading.Thread(target=lambda: out.append(72))\nt.start(); t.join()\nout"
    assert last(code)["value"] == "[72]"
