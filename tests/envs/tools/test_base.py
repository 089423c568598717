"""The decorator, stateful tools, and the registry."""

from __future__ import annotations

import copy
import importlib.metadata
import pickle
import threading
from typing import Any

import cloudpickle
import pytest

from trajgym.envs.tools import Tool, ToolFailure, get_tool, register_tool, select_tools, tool
from trajgym.envs.tools.base import TOOLS
from trajgym.errors import ConfigError, ToolDefinitionError, UnknownNameError
from trajgym.registry import Registry
from trajgym.types import ToolSpec


@tool
def double(number: int) -> int:
    """Double a number.

    Args:
        number: Any integer.
    """
    return 2 * number


@tool(name="memo", timeout=3)
class Memory:
    """Remember words.

    Args:
        word: What to add.
    """

    isolation = "sealed"

    def __init__(self) -> None:
        self.words: list[str] = []

    def open(self, seed: int) -> None:
        self.words = [str(seed)]

    def __call__(self, word: str) -> str:
        self.words.append(word)
        return " ".join(self.words)


class TestFunction:
    def test_is_a_tool_spec_and_still_a_function(self) -> None:
        spec: ToolSpec = double
        assert (spec.name, spec.description) == ("double", "Double a number.")
        assert spec.parameters["properties"]["number"] == {"type": "integer", "description": "Any integer."}
        assert spec.check({"number": 3}) is None
        assert double(21) == 42
        assert (double.stateful, double.timeout, double.isolation) == (False, None, "none")
        assert repr(double) == "<Tool double(number: integer)>"

    def test_name_description_and_timeout_can_be_given(self) -> None:
        @tool(name="my-tool_2", description=" Do it. ", timeout=2)
        def anything() -> None: ...

        assert (anything.name, anything.description, anything.timeout) == ("my-tool_2", "Do it.", 2.0)
        assert anything.isolation == "process"

    def test_methods_and_wrapped_functions(self) -> None:
        class Shop:
            def price(self: Shop, item: str) -> str:
                """Tell a price."""
                return f"{item}: 3"

        bound = tool(Shop().price)
        assert bound.signature == "price(item: string)"
        assert bound("tea") == "tea: 3"

    @pytest.mark.parametrize("name", ["", "1a", "a b", "a.b", "ä", "a" * 65, "a\n"])
    def test_names_are_checked(self, name: str) -> None:
        with pytest.raises(ToolDefinitionError, match="name"):
            tool(name=name)(double.target)

    @pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "3", True])
    def test_timeouts_are_checked(self, timeout: Any) -> None:
        with pytest.raises(ToolDefinitionError, match="timeout"):
            tool(timeout=timeout)(double.target)

    @pytest.mark.parametrize("target", [3, "f", None.__class__, object(), double, lambda: 1])
    def test_other_things_are_no_tools(self, target: Any) -> None:
        with pytest.raises(ToolDefinitionError):
            tool(target)

    def test_a_docstring_is_needed(self) -> None:
        def bare() -> None: ...
        def about_code() -> None: ...

        about_code.__doc__ = "\n    Returns:\n        Nothing that a policy wants to know."
        for function in (bare, about_code):
            with pytest.raises(ToolDefinitionError, match="docstring"):
                tool(function)

    def test_async_and_generators_are_refused(self) -> None:
        async def waiting() -> None:
            """Wait."""

        def yielding() -> Any:
            """Yield."""
            yield 1

        with pytest.raises(ToolDefinitionError, match=r"async.*plain `def`"):
            tool(waiting)
        with pytest.raises(ToolDefinitionError, match="generator"):
            tool(yielding)

    def test_what_cannot_be_sent_to_a_process_has_no_timeout(self) -> None:
        lock = threading.Lock()

        def locked() -> None:
            """Lock."""
            with lock:
                pass

        assert tool(locked).timeout is None
        with pytest.raises(ToolDefinitionError, match=r"cannot be sent.*lock"):
            tool(timeout=1)(locked)


class TestClass:
    def test_is_described_by_its_docstring_and_called_by_call(self) -> None:
        assert (Memory.name, Memory.description, Memory.stateful) == ("memo", "Remember words.", True)
        assert Memory.parameters["properties"] == {"word": {"type": "string", "description": "What to add."}}
        assert Memory.isolation == "sealed"
        assert Memory()("a") == "a"

    def test_wrong_forms_are_refused(self) -> None:
        class Uncalled:
            """Do."""

        class NeedsMore:
            """Do."""

            def __init__(self, path: str) -> None: ...
            def __call__(self) -> None: ...

        class OpensBlindly:
            """Do."""

            def open(self) -> None: ...
            def __call__(self) -> None: ...

        class ClosesWith:
            """Do."""

            def close(self, how: str) -> None: ...
            def __call__(self) -> None: ...

        class OpensLater:
            """Do."""

            async def open(self, seed: int) -> None: ...
            def __call__(self) -> None: ...

        for cls, match in (
            (Uncalled, "no __call__"),
            (NeedsMore, "__init__"),
            (OpensBlindly, r"open\(self, seed\)"),
            (ClosesWith, r"close\(self\)"),
            (OpensLater, "async"),
        ):
            with pytest.raises(ToolDefinitionError, match=match):
                tool(cls)


class TestIdentity:
    def test_copies_are_the_tool_itself(self) -> None:
        assert copy.copy(double) is double
        assert copy.deepcopy({"tools": (double,)})["tools"][0] is double

    def test_importable_tools_are_pickled_by_name(self) -> None:
        calculator = get_tool("calculator")
        assert pickle.loads(pickle.dumps(calculator)) is calculator

    def test_local_tools_are_pickled_by_value(self) -> None:
        @tool(name="triple", timeout=9)
        def local(number: int) -> int:
            """Triple a number."""
            return 3 * number

        twin = cloudpickle.loads(cloudpickle.dumps(local))
        assert isinstance(twin, Tool)
        assert (twin.name, twin.timeout, twin.description, twin(2)) == ("triple", 9.0, "Triple a number.", 6)


class TestRegistry:
    def test_by_name_and_by_object(self) -> None:
        assert get_tool("calculator").name == "calculator"
        assert get_tool(double) is double

    def test_unknown_names(self) -> None:
        with pytest.raises(UnknownNameError, match="Did you mean 'calculator'"):
            get_tool("calculater")

    @pytest.mark.parametrize("thing", [3, None, double.target])
    def test_other_things_are_refused(self, thing: Any) -> None:
        with pytest.raises(ConfigError, match="@tool"):
            get_tool(thing)
        with pytest.raises(ConfigError, match="@tool"):
            register_tool(thing)

    def test_registering(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(TOOLS, "_items", dict(TOOLS._items))
        assert register_tool(double) is double
        assert register_tool(double) is double
        assert get_tool("double") is double
        other = tool(name="double")(double.target)
        with pytest.raises(ConfigError, match="exists already"):
            register_tool(other)
        assert register_tool(other, replace=True) is get_tool("double")

    def test_installed_packages_add_tools(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
            assert group == "trajgym.tools"
            return [
                importlib.metadata.EntryPoint("pluggy", f"{__name__}:double", group),
                importlib.metadata.EntryPoint("broken", "os:getcwd", group),
            ]

        monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
        fresh: Registry[Tool] = Registry("tool", entry_points="trajgym.tools")
        monkeypatch.setattr("trajgym.envs.tools.base.TOOLS", fresh)
        assert get_tool("pluggy") is double
        with pytest.raises(ConfigError, match="@tool"):
            get_tool("broken")

    def test_selecting(self) -> None:
        assert list(select_tools([double, "calculator"])) == ["double", "calculator"]
        with pytest.raises(ConfigError, match="Two tools are called 'double'"):
            select_tools([double, tool(name="double")(double.target)])
        with pytest.raises(ConfigError, match="comma"):
            select_tools("calculator")


class TestFailure:
    def test_has_a_kind_and_a_message(self) -> None:
        failure = ToolFailure("not_found", "No such row.")
        assert (failure.kind, failure.message, str(failure)) == ("not_found", "No such row.", "No such row.")
        assert pickle.loads(pickle.dumps(failure)).kind == "not_found"

    @pytest.mark.parametrize("kind", ["", "Not Found", "1st", "a-b"])
    def test_kinds_are_words(self, kind: str) -> None:
        with pytest.raises(ValueError, match="kind"):
            ToolFailure(kind, "x")
