"""The notebook inside a worker: runs one cell after the other in one namespace, and reports what came of each.

A cell can change anything in this process. What the notebook needs is therefore bound when this module is imported, and
what the next cell needs is put back after each. None of that is a wall: it keeps careless programs running, while the
jail and the host's distrust keep hostile ones in.
"""

from __future__ import annotations

import _sitebuiltins
import ast
import builtins
import gc
import linecache
import os
import random
import sys
from ast import Expr, Expression
from contextlib import suppress
from io import FileIO, TextIOWrapper
from sys import audit, getrecursionlimit, setprofile, setrecursionlimit, settrace
from types import CodeType, ModuleType
from typing import Any

from trajgym.envs.sandbox.quick import compile_quickly
from trajgym.envs.sandbox.source import Refused, is_transcript, prepare
from trajgym.envs.sandbox.text import halves
from trajgym.envs.sandbox.traces import cell_name, describe, exact

__all__ = ["Notebook"]

_RESERVE = 4 << 20  # bytes, enough to report that memory ran out
_REMEMBERED = 256  # cells whose source tracebacks and inspect can show

# The cell's own names for these may have changed by the time that they are used.
_compile, _eval, _exec, _repr = compile, eval, exec, repr
_any_error = BaseException
_builtins, _modules, _sources = vars(builtins), sys.modules, linecache.cache

_ONLY_PARSE = ast.PyCF_ONLY_AST
_LASTING = annotations.compiler_flag  # a cell that imports this feature does so for all later ones

_OUTPUTS = ("stdout", "stderr", "__stdout__", "__stderr__")
_INPUTS = ("stdin", "__stdin__")

_BLANK: dict[str, Any] = {
    "status": "ok",
    "value": "",
    "tail": "",
    "dropped": 0,
    "type": "",
    "message": "",
    "traceback": "",
    "exit_code": 0,
}


class Notebook:
    """One namespace and what runs in it: takes over ``__main__`` and the standard streams of this process.

    Output is written at once, standard output and standard error as one stream, so that the order is kept and nothing
    is lost when the process is killed.

    Args:
        output_fd: Descriptor that both streams write to.
        input_fd: Descriptor of standard input.
    """

    def __init__(self, *, output_fd: int = 1, input_fd: int = 0) -> None:
        self._output_fd = output_fd
        self._input_fd = input_fd
        self._count = 0
        self._flags = 0
        self._depth = getrecursionlimit()
        self._module = ModuleType("__main__")
        # The site module, which is not loaded here, would define these.
        for name in ("exit", "quit"):
            setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
        setattr(builtins, "help", _sitebuiltins._Helper())  # noqa: B010  # no type stub declares it
        self._builtins = dict(_builtins)
        self._reserve: bytes | None = None
        self._put_back()

    def seed(self, seed: int) -> None:
        """Make what is random the same for the same seed.

        Covers ``random``, ``numpy.random`` and sympy's generator if these are loaded, and whatever draws from
        ``os.urandom``: ``secrets``, ``uuid.uuid4``, ``random.SystemRandom``, ``numpy.random.default_rng()``. Not
        covered are the time, ``random.Random()`` without arguments and the names of temporary files, which ask the
        kernel from C.

        Args:
            seed: Any integer.
        """
        random.seed(f"random {seed}")  # of a number, the sign would not count
        if sympy_random := _modules.get("sympy.core.random"):
            sympy_random.seed(f"sympy {seed}")
        if numpy_random := _modules.get("numpy.random"):
            numpy_random.seed(seed % (1 << 32))
        draw = random.Random(f"urandom {seed}").randbytes
        for module, name in ((os, "urandom"), (random, "_urandom")):
            setattr(module, name, draw)

    def run(self, code: str, limit: int) -> dict[str, Any]:
        """Run one cell.

        Args:
            code: What was sent as code.
            limit: Most characters of the value that is echoed.

        Returns:
            Always these fields: ``status`` ("ok", "error", "exit", "memory" or "refused"); ``value``, ``tail`` and
            ``dropped``, the two ends of the echoed value and the number of characters between them; ``type``,
            ``message`` and ``traceback`` of an error or refusal; ``exit_code``, 0 to 255.

        Raises:
            BaseException: The cell left something that makes any further cell impossible, such as an audit hook that
                forbids everything. The process should end.
        """
        try:
            reply = self._run(code, limit)
        except MemoryError:  # while the reply was put together
            self._reserve = None
            reply = {**_BLANK, "status": "memory", "type": "MemoryError"}
        if reply["status"] != "ok":
            # Telling an error called methods of its class.
            try:
                self._put_back()
            except _any_error:
                self._put_back()
        audit("trajgym.cell")  # an audit hook cannot be removed: if it raises here, it would in every cell
        return reply

    def _run(self, code: str, limit: int) -> dict[str, Any]:
        try:
            value, tail, dropped = halves(self._evaluate(code), limit)
            return {**_BLANK, "value": value, "tail": tail, "dropped": dropped}
        except MemoryError as error:
            self._reserve = None
            return {**_BLANK, "status": "memory", **describe(error)._asdict()}
        except SystemExit as error:
            return {**_BLANK, "status": "exit", "exit_code": _exit_code(error)}
        except Refused as error:
            return {**_BLANK, "status": "refused", "type": error.kind, "message": error.message}
        except BaseException as error:
            return {**_BLANK, "status": "error", **describe(error)._asdict()}

    def _evaluate(self, code: str) -> str:
        """Run the cell and return the ``repr`` of its last expression, empty if there is nothing to show."""
        self._count += 1
        name = cell_name(self._count)
        namespace = vars(self._module)
        if self._reserve is None:
            with suppress(MemoryError):
                self._reserve = bytes(_RESERVE)  # untouched pages: they count against the limit but take no memory
        try:
            program, shown = self._compile(code, name)
            if program is not None:
                self._flags |= program.co_flags & _LASTING
                _exec(program, namespace)
            value = None if shown is None else _eval(shown, namespace)
            return "" if value is None else exact(_repr(value))
        finally:
            try:
                self._put_back()
            except _any_error:  # a trace or profile function saw this call and raised, which removes it; or no memory
                self._reserve = None
                self._put_back()

    def _compile(self, code: str, name: str) -> tuple[CodeType | None, CodeType | None]:
        """Return what is to be run and what is to be evaluated and shown."""
        self._remember(code, name)
        if not is_transcript(code):
            quick = compile_quickly(code, name, self._flags)
            if quick is not None:
                return quick
        source, tree = self._parse(code, name)
        last = tree.body[-1] if tree.body else None
        shown = None
        if isinstance(last, Expr) and not _is_silenced(source, last):
            del tree.body[-1]
            shown = _compile(Expression(last.value), name, "eval", self._flags, True)
        return (_compile(tree, name, "exec", self._flags, True) if tree.body else None), shown

    def _parse(self, code: str, name: str) -> tuple[str, ast.Module]:
        try:
            tree = _compile(code, name, "exec", _ONLY_PARSE | self._flags, True)
            if not is_transcript(code):
                return code, tree
        except (SyntaxError, ValueError):
            pass
        source = prepare(code)
        self._remember(source, name)
        return source, _compile(source, name, "exec", _ONLY_PARSE | self._flags, True)

    def _remember(self, source: str, name: str) -> None:
        # Without a time of modification, so that nobody looks for the file.
        _sources[name] = (len(source), None, [line + "\n" for line in _lines(source)], name)
        _sources.pop(cell_name(self._count - _REMEMBERED), None)

    def _put_back(self) -> None:
        """Restore what a cell may have changed and both our code and the next cell rely on."""
        _builtins.update(self._builtins)
        if getrecursionlimit() < self._depth:
            setrecursionlimit(self._depth)
        settrace(None)
        setprofile(None)
        gc.enable()
        linecache.cache = _sources
        sys.modules = _modules
        _modules.update(sys=sys, builtins=builtins, __main__=self._module)
        namespace = vars(self._module)
        namespace["__builtins__"] = builtins
        namespace.setdefault("__name__", "__main__")
        outputs = [getattr(sys, name, None) for name in _OUTPUTS]
        if not (_is_intact(outputs[0]) and all(stream is outputs[0] for stream in outputs)):
            for stream in outputs[:2]:
                with suppress(BaseException):  # it may be anything; what it holds back would come too late
                    stream.flush()  # type: ignore[union-attr]
            for name, stream in dict.fromkeys(_OUTPUTS, _stream(self._output_fd, "wb")).items():
                setattr(sys, name, stream)
        inputs = [getattr(sys, name, None) for name in _INPUTS]
        if not (_is_intact(inputs[0]) and inputs[0] is inputs[1]):
            for name, stream in dict.fromkeys(_INPUTS, _stream(self._input_fd, "rb")).items():
                setattr(sys, name, stream)


def _is_intact(stream: Any) -> bool:
    """Whether a stream is as :func:`_stream` made it: not closed, detached, patched or reconfigured."""
    try:
        return (
            type(stream) is TextIOWrapper
            and type(stream.buffer) is FileIO
            and not (vars(stream) or stream.closed)
            and vars(stream.buffer).keys() == {"name"}
            and (stream.encoding, stream.errors, stream.write_through) == ("utf-8", "backslashreplace", True)
        )
    except ValueError:  # detached
        return False


def _stream(descriptor: int, mode: str) -> TextIOWrapper | None:
    try:
        raw = FileIO(descriptor, mode, closefd=False)
    except OSError:  # the cell closed it; Python itself starts without the stream then
        return None
    return TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)


def _is_silenced(source: str, last: Expr) -> bool:
    """Whether a semicolon follows the last expression."""
    if ";" not in source:
        return False
    assert last.end_lineno is not None
    assert last.end_col_offset is not None
    rest = "\n".join(_lines(source)[last.end_lineno - 1 :]).encode()[last.end_col_offset :]
    return rest.replace(b"\\\n", b"").lstrip().startswith(b";")


def _lines(source: str) -> list[str]:
    # As the tokenizer counts them; str.splitlines knows more line ends.
    return source.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _exit_code(error: SystemExit) -> int:
    """Return the status that a process would end with; anything but a number is printed first."""
    code = vars(SystemExit)["code"].__get__(error)  # a subclass can hide the attribute
    if code is None:
        return 0
    if issubclass(type(code), int):
        return int.__and__(code, 0xFF)
    with suppress(BaseException):  # its __str__ raised, or the stream is gone
        print(code, file=sys.stderr)
    return 1
