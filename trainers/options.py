"""How a run is configured: a typed model of its options, read from a recipe, a YAML file and the command line.

Each kind of run has a class of options of its own, e.g. :class:`trajgym.trainers.config.GRPOConfig`; this file holds
what they share. A recipe belongs to the class that allows its ``algorithm``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar, get_args

import tyro
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from trajgym.errors import ConfigError, UnknownNameError

__all__ = ["Json", "Options", "RunOptions", "read_options", "recipe_file", "recipes_of"]

_RECIPES = Path(__file__).parent / "recipes"

Json = tyro.conf.arg(constructor=json.loads, metavar="JSON")
"""Annotates an option whose value is given as JSON on the command line."""


class Options(BaseModel):
    """Base of the options of a run. Values are checked when it is made; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    @classmethod
    def chosen(cls, values: dict[str, Any], args: Sequence[str]) -> dict[str, Any]:
        """Return the values to use after the command line was read, before they are checked.

        Args:
            values: All values, those of ``args`` among them.
            args: What was given on the command line.
        """
        return values

    def dump(self) -> str:
        """Return the effective values as YAML, in the order in which they are declared."""
        return yaml.safe_dump(self.plain(), sort_keys=False)

    def plain(self) -> dict[str, Any]:
        """Return the effective values as JSON values; objects among them are written as their repr."""
        return self.model_dump(mode="json", fallback=_name_of)


class RunOptions(Protocol):
    """What the run folder must know of a run's options, whatever kind of run it is."""

    @property
    def seed(self) -> int:
        """Seeds everything."""

    @property
    def output_dir(self) -> Path:
        """Parent of the run folder."""

    @property
    def name(self) -> str | None:
        """Name of the run folder."""

    @property
    def resume(self) -> bool:
        """Whether to go on from the newest checkpoint."""

    @property
    def overwrite(self) -> bool:
        """Whether to replace a run folder of this name."""

    @property
    def keep_checkpoints(self) -> int:
        """How many checkpoints to keep."""

    def dump(self) -> str:
        """Return the effective values as YAML."""

    def plain(self) -> dict[str, Any]:
        """Return the effective values as JSON values."""


Kind = TypeVar("Kind", bound=Options)


def recipes_of(kind: type[Options]) -> list[str]:
    """Return the recipes that ship with the package for this kind of run."""
    field = kind.model_fields["algorithm"]
    found = []
    for path in _RECIPES.glob("*.yaml"):
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        if values.get("algorithm", "grpo") in get_args(field.annotation):
            found.append(path.stem)
    return sorted(found)


def recipe_file(kind: type[Options], name: str) -> Path:
    """Return the file of a recipe, or of a YAML file given by its path.

    Raises:
        ConfigError: When there is no such recipe or file.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise ConfigError(f"There is no configuration file {name!r}.")
        return path
    known = recipes_of(kind)
    if name not in known:
        raise UnknownNameError("recipe", name, known, "Or give the path of a .yaml file.")
    return _RECIPES / f"{name}.yaml"


def read_options(
    kind: type[Kind], source: str | Path | Mapping[str, Any], args: Sequence[str] = (), *, command: str
) -> Kind:
    """Read the options of a run.

    Args:
        kind: Class of the options.
        source: A recipe's name, a YAML file, or the values themselves.
        args: Command-line overrides such as ``["--gamma", "0.95"]``.
        command: The command that they are given to, for its help.

    Raises:
        ConfigError: For a key or a value that is not allowed; names it.
        SystemExit: After ``--help``, and for an option that does not exist, with the closest ones printed.
    """
    if isinstance(source, Mapping):
        values, origin = dict(source), "the configuration"
    else:
        path = recipe_file(kind, str(source))
        origin = str(path)
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"{path} cannot be read as YAML: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError(f"{path} must hold a mapping of options, got {type(values).__name__}.")
    for key in values:
        if key not in kind.model_fields:
            raise UnknownNameError("option", key, kind.model_fields, f"It is set in {origin}.")
    config = _checked(kind, values, origin)
    if not args:
        return config
    loose = _without_bounds(kind)
    given = tyro.cli(loose, args=list(args), default=loose(**dict(config)), prog=f"trajgym {command} RECIPE")
    return _checked(kind, kind.chosen(dict(given), args), "the command line")


def _checked(kind: type[Kind], values: Mapping[str, Any], origin: str) -> Kind:
    try:
        return kind(**values)
    except ValidationError as error:
        raise ConfigError(_plain(error, origin)) from error


def _name_of(value: object) -> str:
    """Write an object the same way in every process: no addresses."""
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _without_bounds(kind: type[Options]) -> Any:
    """Return the options without their bounds, so that wrong values are reported the same way wherever they stand."""
    fields: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        parse = tuple(m for m in field.metadata if type(m).__module__.startswith("tyro"))
        annotation = Annotated[(field.annotation, *parse)] if parse else field.annotation
        fields[name] = (annotation, Field(field.default, description=field.description))
    return create_model(kind.__name__, **fields)


def _plain(error: ValidationError, origin: str) -> str:
    """Say in one line per option what is wrong."""
    lines = []
    for item in error.errors():
        where = ".".join(map(str, item["loc"])) or "options"
        got = "" if item["type"] == "value_error" else f", got {item['input']!r}"
        lines.append(f"{where}: {item['msg'].removeprefix('Value error, ')}{got}")
    return f"Bad value in {origin}: " + "; ".join(lines)
