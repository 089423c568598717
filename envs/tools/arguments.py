"""The typed parameters of a tool: their JSON schema, and the strict reading of what a policy wrote.

Everything that cannot work is found when the tool is defined (``ToolDefinitionError``); everything a
policy can get wrong afterwards is a typed ``CallError`` that says what to change.
"""

from __future__ import annotations

import copy
import enum
import inspect
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union

import pydantic
import pydantic_core
import typing_extensions

from trajgym.errors import ToolDefinitionError, did_you_mean
from trajgym.types import CallError

__all__ = ["Arguments"]

_KINDS = ("missing_argument", "unexpected_argument", "wrong_type", "number_too_large")  # the first one found is named
_MAX_DEPTH = 100
_MAX_BITS = 14_284  # 4,300 decimal digits, what Python itself is willing to print
_ENCODE = json.JSONEncoder(default=dict).encode  # made once: json.dumps makes one for every call with a default
_SHOWN = 60  # characters of a wrong value that are repeated to the policy
_ALLOWED = (
    "str, int, float, bool, None, Literal[...], list[...], dict[str, ...], unions of these, "
    "an Enum of strings or integers, a TypedDict or a pydantic model"
)


class Arguments:
    """What a callable takes, read from its annotations.

    Args:
        function: The callable; ``self`` must be bound or left out already.
        name: The tool's name, for messages.
        docs: Description of each parameter, from the docstring.

    Raises:
        ToolDefinitionError: A parameter that a policy could not fill in, or a default of the wrong type.
    """

    def __init__(self, function: Callable[..., Any], name: str, docs: Mapping[str, str]) -> None:
        self._name = name
        parameters = _parameters(function, name)
        self._defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        for unknown in set(docs) - {p.name for p in parameters}:
            close = did_you_mean(unknown, [p.name for p in parameters])
            raise ToolDefinitionError(
                f"The docstring of tool {name!r} describes no parameter of it: {unknown!r}.{close}"
            )
        hints = {
            parameter: _strict(hint, f"parameter {parameter!r} of tool {name!r}")
            for parameter, hint in _hints(function, name, {p.name for p in parameters}).items()
        }
        # Fields are called p0, p1, … and aliased, so that no parameter name collides with pydantic's own.
        self._fields = {f"p{i}": p.name for i, p in enumerate(parameters)}
        fields: dict[str, Any] = {
            field: (
                hints[parameter],
                pydantic.Field(
                    self._defaults.get(parameter, ...), alias=parameter, description=docs.get(parameter) or None
                ),
            )
            for field, parameter in self._fields.items()
        }
        try:
            defaults = json.dumps(pydantic_core.to_jsonable_python(self._defaults), allow_nan=False)
            self._model = pydantic.create_model(
                f"{name} arguments",
                __config__=pydantic.ConfigDict(strict=True, extra="forbid", allow_inf_nan=False),
                **fields,
            )
            self.schema: dict[str, Any] = _without_titles(self._model.model_json_schema())
        except (pydantic.PydanticUserError, TypeError, ValueError) as error:
            raise ToolDefinitionError(f"The parameters of tool {name!r} have no JSON schema: {error}") from error
        # A value of exactly one of these types is what pydantic would make of it.
        self._plain = hints if all(hint in (str, int, float, bool) for hint in hints.values()) else {}
        self.schema.setdefault("properties", {})
        self.schema.setdefault("required", [])
        self.signature = self._describe()
        try:
            self._model.model_validate_json(defaults, strict=True)
        except pydantic.ValidationError as error:
            unfit = {str(e["loc"][0]) for e in error.errors()} & set(self._defaults)
            if unfit:
                raise ToolDefinitionError(
                    f"The default of parameter {min(unfit)!r} of tool {name!r} does not fit its type: "
                    f"{self.signature}. An argument that may be None is annotated `... | None`."
                ) from error

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any] | CallError:
        """Turn what a policy wrote into keyword arguments, defaults filled in; nothing is coerced.

        Args:
            arguments: JSON values by name.

        Returns:
            The keyword arguments, or what is wrong; of several mistakes the kind of the first one in the order
            values that no JSON holds, missing, unexpected, wrong type, and a message about all of them.
        """
        if self._is_plain(arguments):
            return {parameter: arguments[parameter] for parameter in self._plain}
        given: object = arguments  # whatever a parser made of it
        if not isinstance(given, Mapping):
            return CallError("bad_call_shape", f"The arguments of {self._name} must be an object. {self._use}")
        unfit = _unfit(arguments)
        if unfit is not None:
            kind, problem = unfit
            return CallError(kind, f"{self._name}: {problem}. {self._use}")
        try:
            model = self._model.model_validate_json(_ENCODE(arguments), strict=True)
        except pydantic.ValidationError as error:
            return self._call_error(error, arguments)
        # A default is copied: a tool that changes its list must not change the next call's.
        return {
            parameter: getattr(model, field) if parameter in arguments else copy.deepcopy(self._defaults[parameter])
            for field, parameter in self._fields.items()
        }

    def _is_plain(self, arguments: Mapping[str, Any]) -> bool:
        """Whether all of the arguments are there and need neither checking nor converting, as nearly always."""
        if not self._plain or type(arguments) is not dict or arguments.keys() != self._plain.keys():
            return False
        for parameter, value in arguments.items():
            kind = type(value)
            if kind is not self._plain[parameter]:
                return False
            if kind is str:
                fits = value.isascii()
            else:
                fits = math.isfinite(value) if kind is float else value.bit_length() < 64
            if not fits:
                return False
        return True

    @property
    def _use(self) -> str:
        return f"Use: {self.signature}"

    def _call_error(self, error: pydantic.ValidationError, arguments: Mapping[str, Any]) -> CallError:
        found: dict[str, list[str]] = {kind: [] for kind in _KINDS}
        seen: set[Any] = set()
        for e in error.errors(include_url=False):
            argument, top = e["loc"][0], len(e["loc"]) == 1
            if argument in seen:
                continue  # a union reports each of its members
            seen.add(argument)
            if e["type"] == "missing" and top:
                found["missing_argument"].append(f"the argument {argument!r} is missing")
            elif e["type"] == "extra_forbidden" and top:
                close = did_you_mean(str(argument), self._fields.values())
                found["unexpected_argument"].append(f"there is no argument {argument!r}.{close}".rstrip("."))
            else:
                wanted = _type(self.schema["properties"][argument], self.schema)
                detail = "" if top and e["type"].endswith("_type") else f" ({e['msg']})"
                got = _short(arguments[str(argument)])
                kind = "number_too_large" if e["type"] == "finite_number" else "wrong_type"
                found[kind].append(f"the argument {argument!r} must be {wanted}, not {got}{detail}")
        kind = next(kind for kind, problems in found.items() if problems)
        problems = "; ".join(problem for several in found.values() for problem in several)
        end = "" if problems.endswith("?") else "."
        return CallError(kind, f"{self._name}: {problems}{end} {self._use}")

    def _describe(self) -> str:
        parts = []
        for parameter, schema in self.schema["properties"].items():
            default = f" = {json.dumps(schema['default'], ensure_ascii=False)}" if "default" in schema else ""
            parts.append(f"{parameter}: {_type(schema, self.schema)}{default}")
        return f"{self._name}({', '.join(parts)})"


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise ToolDefinitionError(f"Tool {name!r} has no readable signature: {error}") from error
    for p in parameters:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise ToolDefinitionError(f"Tool {name!r} takes {p}; a policy needs a name and a type for each argument.")
        if p.kind is p.POSITIONAL_ONLY:
            raise ToolDefinitionError(f"Parameter {p.name!r} of tool {name!r} is positional-only; drop the `/`.")
        if p.annotation is p.empty:
            raise ToolDefinitionError(
                f"Parameter {p.name!r} of tool {name!r} has no type. Write for example `{p.name}: str`."
            )
    return parameters


def _hints(function: Callable[..., Any], name: str, parameters: set[str]) -> dict[str, Any]:
    inner = inspect.unwrap(function)
    # The types of `self` and of the result are left out: they may exist for type checkers only.
    annotations = {k: v for k, v in inspect.get_annotations(inner).items() if k in parameters}
    holder = types.SimpleNamespace(__annotations__=annotations)
    try:
        return typing.get_type_hints(holder, getattr(inner, "__globals__", {}), include_extras=True)
    except Exception as error:
        raise ToolDefinitionError(
            f"The types of tool {name!r} cannot be read: {type(error).__name__}: {error}. "
            "Import or define them at module level."
        ) from error


def _strict(annotation: Any, where: str) -> Any:
    """Return the type with its last coercions removed, or refuse it."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return Annotated[(_strict(inner[0], where), *annotation.__metadata__)]
    if origin in (Union, types.UnionType):
        return Union[tuple(_strict(member, where) for member in inner)]  # noqa: UP007
    if origin is list:
        return list[_strict(inner[0], where)]  # type: ignore[misc]
    if origin is dict and inner[0] is str:
        return dict[str, _strict(inner[1], where)]  # type: ignore[misc]
    if origin is Literal:
        return _exactly(annotation, inner, where)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _exactly(annotation, [member.value for member in annotation], where)
    if (
        annotation in (str, int, float, bool, None, type(None))
        or typing_extensions.is_typeddict(annotation)
        or (isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel))
    ):
        return annotation
    shown = annotation.__name__ if isinstance(annotation, type) and origin is None else str(annotation)
    raise ToolDefinitionError(f"The {where} has the type {shown}, which no JSON value has. Allowed: {_ALLOWED}.")


def _exactly(annotation: Any, values: Sequence[Any], where: str) -> Any:
    kinds = {type(value) for value in values}
    if not kinds <= {str, int, bool, type(None)}:
        raise ToolDefinitionError(f"The {where} is a choice between values that are not all str, int, bool or None.")

    def refuse_equal_values(value: Any) -> Any:
        # Python has 1 == 1.0 == True, and pydantic compares choices by equality.
        if type(value) not in kinds:
            raise ValueError(f"a {type(value).__name__} is none of the choices")
        return value

    return Annotated[annotation, pydantic.BeforeValidator(refuse_equal_values)]


def _unfit(arguments: Mapping[str, Any]) -> tuple[str, str] | None:
    """Find the first value that strict JSON cannot carry."""
    todo: list[tuple[Any, int]] = [(arguments, 0)]
    while todo:
        value, depth = todo.pop()
        if depth > _MAX_DEPTH:
            return "too_deep", f"the arguments are nested more than {_MAX_DEPTH} levels deep"
        if isinstance(value, Mapping):
            todo.extend((part, depth + 1) for item in value.items() for part in item)
            if not all(isinstance(key, str) for key in value):
                return "wrong_type", "the keys of an object must be strings"
        elif isinstance(value, (list, tuple)):
            todo.extend((part, depth + 1) for part in value)
        elif isinstance(value, str):
            if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
                return "bad_unicode", "a string holds half a surrogate pair, which is no character"
        elif isinstance(value, int):
            if value.bit_length() > _MAX_BITS:
                return "number_too_large", "an integer has more than 4,300 digits"
        elif isinstance(value, float):
            if not math.isfinite(value):
                return "non_finite_number", f"{value} is not a number that can be used here"
        elif value is not None:
            return "wrong_type", f"a {type(value).__name__} is not a JSON value"
    return None


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=dict)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _type(schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """Say in a few words what values a JSON schema allows."""
    if "$ref" in schema:
        return _type(root["$defs"][schema["$ref"].rsplit("/", 1)[-1]], root)
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return " or ".join(_type(member, root) for member in schema[choice])
    if "const" in schema or "enum" in schema:
        return " or ".join(json.dumps(v, ensure_ascii=False) for v in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array" and "items" in schema:
        return f"array of {_type(schema['items'], root)}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {_type(schema['additionalProperties'], root)}"
    return str(schema.get("type", "any value"))


def _without_titles(schema: Any) -> Any:
    """Drop the titles pydantic invents: they cost a policy tokens and tell it nothing."""
    if isinstance(schema, list):
        return [_without_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    literal = ("default", "const", "enum", "examples")
    return {
        key: value if key in literal else _without_titles(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }
