"""What a policy may write as arguments, and how it is told what was wrong."""

from __future__ import annotations

import enum
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import pytest
import typing_extensions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trajgym.envs.tools import Tool, tool
from trajgym.errors import ToolDefinitionError
from trajgym.types import CallError

CASES = Path(os.environ.get("TRAJGYM_CASES", Path(__file__).parents[3].parent / "shared" / "cases"))


class Unit(enum.Enum):
    CM = "cm"
    M = 1


class Point(typing_extensions.TypedDict):
    x: int
    label: typing_extensions.NotRequired[str]


class Box(pydantic.BaseModel):
    corner: Point
    size: float


@tool
def lookup(table: str, row: int, exact: bool = False, tags: list[str] = []) -> str:  # noqa: B006
    """Look up a row.

    Args:
        row: Row number.
    """
    tags.append("used")
    return f"{table} {row} {exact} {tags}"


@tool
def weigh(name: str, count: int, weight: float, sure: bool = True) -> str:
    """Weigh."""
    return f"{name} {count} {weight} {sure}"


@tool
def calculator(expression: str) -> str:
    """Compute."""
    return expression


@tool
def python(code: str) -> str:
    """Run."""
    return code


@tool
def reset() -> str:
    """Begin anew."""
    return "done"


@tool
def wide(
    number: float,
    mode: Literal["a", 1, None] = "a",
    unit: Unit = Unit.CM,
    counts: dict[str, int] | None = None,
    point: Point | None = None,
    box: Box | None = None,
    *,
    rate: Annotated[float, pydantic.Field(ge=0, le=1)] = 0.5,
    nested: list[list[int | str]] = [],  # noqa: B006
) -> str:
    """Use every type."""
    return repr((number, mode, unit, counts, point, box, rate, nested))


class TestSchema:
    def test_lookup(self) -> None:
        assert lookup.parameters == {
            "type": "object",
            "properties": {
                "table": {"type": "string"},
                "row": {"type": "integer", "description": "Row number."},
                "exact": {"type": "boolean", "default": False},
                "tags": {"type": "array", "items": {"type": "string"}, "default": []},
            },
            "required": ["table", "row"],
            "additionalProperties": False,
        }
        assert lookup.signature == (
            "lookup(table: string, row: integer, exact: boolean = false, tags: array of string = [])"
        )

    def test_no_parameters(self) -> None:
        assert reset.parameters == {
            "type": "object",
            "properties": {},
            "required": [],
            "additionalProperties": False,
        }

    def test_every_type(self) -> None:
        assert wide.signature == (
            'wide(number: number, mode: "a" or 1 or null = "a", unit: "cm" or 1 = "cm", '
            "counts: object of integer or null = null, point: object or null = null, box: object or null = null, "
            "rate: number = 0.5, nested: array of array of integer or string = [])"
        )
        assert json.loads(json.dumps(wide.parameters)) == wide.parameters
        assert '"title"' not in json.dumps(wide.parameters)

    def test_parameters_may_be_called_anything(self) -> None:
        @tool
        def odd(schema: str, model_config: int, copy: bool, _x: str, title: str, self: int) -> str:
            """Take names that pydantic uses too."""
            return schema

        given_ = {"schema": "s", "model_config": 1, "copy": True, "_x": "", "title": "t", "self": 3}
        assert list(odd.parameters["properties"]) == list(given_)
        assert odd.read(given_) == given_


class TestReading:
    def test_defaults_are_filled_in_and_never_shared(self) -> None:
        for _ in range(2):
            read = lookup.read({"table": "t", "row": 3})
            assert read == {"table": "t", "row": 3, "exact": False, "tags": []}
            assert isinstance(read, dict)
            lookup(**read)

    def test_values_become_what_the_function_declares(self) -> None:
        read = wide.read({"number": 3, "unit": 1, "box": {"corner": {"x": 1}, "size": 2}, "mode": None})
        assert isinstance(read, dict)
        assert (read["number"], type(read["number"])) == (3.0, float)
        assert read["unit"] is Unit.M
        assert read["box"] == Box(corner={"x": 1}, size=2.0)
        assert (read["mode"], read["rate"]) == (None, 0.5)

    @pytest.mark.parametrize(
        ("arguments", "kind"),
        [
            ({"table": "t"}, "missing_argument"),
            ({}, "missing_argument"),
            ({"table": "t", "rwo": 3}, "missing_argument"),
            ({"table": 1, "rwo": 3}, "missing_argument"),
            ({"table": "t", "row": 3, "x": 1}, "unexpected_argument"),
            ({"table": "t", "row": "3", "x": 1}, "unexpected_argument"),
            ({"table": "t", "row": "3"}, "wrong_type"),
            ({"table": "t", "row": 3.0}, "wrong_type"),
            ({"table": "t", "row": True}, "wrong_type"),
            ({"table": "t", "row": None}, "wrong_type"),
            ({"table": None, "row": 3}, "wrong_type"),
            ({"table": "t", "row": 3, "exact": 1}, "wrong_type"),
            ({"table": "t", "row": 3, "exact": "true"}, "wrong_type"),
            ({"table": "t", "row": 3, "tags": "a"}, "wrong_type"),
            ({"table": "t", "row": 3, "tags": ["a", 1]}, "wrong_type"),
            ({"table": "t", "row": 3, "tags": {"a": "b"}}, "wrong_type"),
            ({"table": "t", "row": 3, "tags": {1, 2}}, "wrong_type"),
            ({"table": b"t", "row": 3}, "wrong_type"),
            ({"table": "t", "row": float("nan")}, "non_finite_number"),
            ({"table": "t", "row": 3, "tags": [float("inf")]}, "non_finite_number"),
            ({"table": "t", "row": 10**5000}, "number_too_large"),
            ({"table": "\ud800", "row": 3}, "bad_unicode"),
            ({"table": "t", "row": 3, "\udfff": 3}, "bad_unicode"),
            ({3: "t", "row": 3}, "wrong_type"),
            (["t", 3], "bad_call_shape"),
            (None, "bad_call_shape"),
        ],
    )
    def test_mistakes(self, arguments: Any, kind: str) -> None:
        error = lookup.check(arguments)
        assert isinstance(error, CallError)
        assert error.kind == kind
        assert lookup.signature in error.message
        assert "\n" not in error.message

    @pytest.mark.parametrize(
        "arguments",
        [
            {"number": "1"},
            {"number": True},
            {"number": 1, "mode": True},
            {"number": 1, "mode": 1.0},
            {"number": 1, "mode": "b"},
            {"number": 1, "unit": True},
            {"number": 1, "unit": 1.0},
            {"number": 1, "unit": "CM"},
            {"number": 1, "counts": {"a": 1.0}},
            {"number": 1, "point": {"x": 1, "y": 2}},
            {"number": 1, "point": {"x": "1"}},
            {"number": 1, "box": {"corner": {"x": 1}, "size": "2"}},
            {"number": 1, "rate": 1.5},
            {"number": 1, "nested": [[1, "a"], [None]]},
        ],
    )
    def test_nothing_is_coerced(self, arguments: dict[str, Any]) -> None:
        error = wide.check(arguments)
        assert error is not None
        assert error.kind == "wrong_type"

    def test_a_float_too_large_for_a_float(self) -> None:
        error = wide.check({"number": 10**400})
        assert error is not None
        assert error.kind == "number_too_large"

    def test_nesting_is_limited(self) -> None:
        deep: Any = []
        for _ in range(100_000):
            deep = [deep]
        error = lookup.check({"table": "t", "row": 1, "tags": deep})
        assert error is not None
        assert error.kind == "too_deep"

    def test_the_message_says_what_to_change(self) -> None:
        error = lookup.check({"tabel": "t", "row": "3", "exact": False})
        assert error is not None
        assert error.message == (
            "lookup: the argument 'table' is missing; there is no argument 'tabel'. Did you mean 'table'?; "
            "the argument 'row' must be integer, not \"3\". Use: " + lookup.signature
        )
        error = lookup.check({"table": "t", "row": 1, "tags": ["x" * 500]})
        assert error is None
        error = lookup.check({"table": "t", "row": "x" * 500})
        assert error is not None
        assert len(error.message) < 300

    @settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
    @given(
        st.dictionaries(
            st.sampled_from(["table", "row", "exact", "tags", "x"]),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.floats() | st.text(alphabet=st.characters()),
                lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
                max_leaves=5,
            ),
        )
    )
    def test_whatever_comes_gets_an_answer(self, arguments: dict[str, Any]) -> None:
        read = lookup.read(arguments)
        right = (
            type(arguments.get("table")) is str
            and type(arguments.get("row")) is int
            and type(arguments.get("exact", False)) is bool
            and type(arguments.get("tags", [])) is list
            and all(type(tag) is str for tag in arguments.get("tags", []))
            and "x" not in arguments
        )
        unfit = isinstance(read, CallError) and read.kind in ("bad_unicode", "non_finite_number", "number_too_large")
        assert unfit or isinstance(read, dict) == right

    @given(
        name=st.text(alphabet=st.characters()) | st.none() | st.integers(),
        count=st.integers() | st.booleans() | st.sampled_from([2**63, -(2**80), 10**5000]) | st.floats(),
        weight=st.floats() | st.integers() | st.booleans(),
        sure=st.booleans() | st.integers(0, 1),
    )
    def test_what_needs_no_conversion_is_read_as_all_else(self, **arguments: Any) -> None:
        quick = weigh.read(arguments)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(weigh._arguments, "_plain", {})
            slow = weigh.read(arguments)
        assert repr(quick) == repr(slow)  # tells 1 from 1.0 and True, and NaN from nothing


def _rows() -> Iterator[Any]:
    path = CASES / "toolcalls.jsonl"
    tools: dict[str, Tool] = {"calculator": calculator, "python": python, "lookup": lookup, "reset": reset}
    for line in path.read_text(encoding="utf-8").split("\n") if path.exists() else []:
        row = json.loads(line) if line else {"format": ""}
        if row["format"] != "hermes" or row["role"] != "assistant":
            continue
        body = row["text"].removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
        try:
            call = json.loads(body)
        except ValueError:
            continue  # what the parser refuses is the parser's test
        if isinstance(call, dict) and call.get("name") in tools and isinstance(call.get("arguments") or {}, dict):
            yield pytest.param(tools[call["name"]], call.get("arguments") or {}, row["expected"]["error"], id=row["id"])


@pytest.mark.cases
@pytest.mark.skipif(not CASES.exists(), reason="no case files")
@pytest.mark.parametrize(("called", "arguments", "kind"), list(_rows()))
def test_rows(called: Tool, arguments: dict[str, Any], kind: str | None) -> None:
    error = called.check(arguments)
    if kind in (None, "missing_argument", "unexpected_argument", "wrong_type", "non_finite_number", "number_too_large"):
        assert (error and error.kind) == kind


class TestDefinition:
    """Everything that is wrong with a function is said when it is decorated."""

    def refuse(self, function: Any, match: str) -> None:
        function.__doc__ = function.__doc__ or "Do it."
        with pytest.raises(ToolDefinitionError, match=match):
            tool(function)

    def test_parameters_without_a_name_or_a_type(self) -> None:
        def untyped(a):  # type: ignore[no-untyped-def]
            ...

        def several(*a: int) -> None: ...
        def named(**a: int) -> None: ...
        def positional(a: int, /) -> None: ...

        self.refuse(untyped, "'a'.*has no type")
        self.refuse(several, r"takes \*a")
        self.refuse(named, r"takes \*\*a")
        self.refuse(positional, "positional-only")

    @pytest.mark.parametrize(
        "kind",
        [bytes, set[str], tuple[int, ...], list, dict, dict[int, str], Any, object, complex, Path, list[bytes],
         Literal[b"a"], int | bytes, functools.partial],
    )  # fmt: skip
    def test_types_that_json_does_not_have(self, kind: Any) -> None:
        def typed(a) -> None: ...  # type: ignore[no-untyped-def]

        typed.__annotations__["a"] = kind
        self.refuse(typed, "'a'.*(Allowed|choice)")

    def test_types_that_cannot_be_read(self) -> None:
        def typed(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

        self.refuse(typed, "Nowhere.*module level")

    def test_a_return_type_nobody_can_read_is_no_matter(self) -> None:
        def typed(a: int) -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
            """Do it."""

        assert tool(typed).check({"a": 1}) is None

    def test_defaults_of_the_wrong_type(self) -> None:
        def optional(a: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013
        def text(a: int = "3") -> None: ...  # type: ignore[assignment]
        def strange(a: int = object()) -> None: ...  # type: ignore[assignment]
        def endless(a: float = float("nan")) -> None: ...

        self.refuse(optional, r"None")
        self.refuse(text, "does not fit")
        self.refuse(strange, "'strange'")
        self.refuse(endless, "'endless'")

    def test_a_docstring_about_something_else(self) -> None:
        def described(number: int) -> None:
            """Do it.

            Args:
                numbr: A number.
            """

        self.refuse(described, "'numbr'. Did you mean 'number'")
