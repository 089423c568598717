"""The options of a tuning run: what is tuned, how it is searched, and what counts as better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, model_validator

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.options import Json, Options, read_options, recipe_file, recipes_of
from trajgym.trainers.sft_config import SFTConfig
from trajgym.trainers.tune_space import PRESETS, Method, Space, applied, grid, read_space

__all__ = ["TuneConfig", "load_tune_config"]


class TuneConfig(Options):
    """Options of ``trajgym tune``. Every key has an effect; unknown keys are refused."""

    algorithm: Literal["tune"] = Field("tune", description="Train and evaluate again and again with other options.")

    # What is tuned
    recipe: str = Field(
        "quickstart", description="What a trial runs: a recipe of trajgym train or sft, or a .yaml file."
    )
    options: Annotated[dict[str, Any], Json] = Field(
        {}, description="Options that every trial has in place of the recipe's, as JSON."
    )
    preset: Literal["grid", "random", "bayes"] | None = Field(
        None, description="A known search: gives method, space and trials where they are unset, and turns use_lora on."
    )
    method: Method | None = Field(None, description="How to go through the space; random when unset.")
    space: Annotated[dict[str, Any], Json] = Field(
        {}, description='As JSON: {"lora_rank": [8, 16], "kl_coef": {"low": 0.01, "high": 0.5, "log": true}}.'
    )
    trials: int | None = Field(None, ge=1, description="How many; all of a grid, and otherwise 10, when unset.")
    seeds: int = Field(1, ge=1, description="Runs of each trial, with seeds one after another from seed on.")
    prune: bool = Field(
        True,
        description="With optuna, stop a trial whose curve is worse than the median of earlier ones: right answers, or "
        "for sft the loss on eval_samples.",
    )
    prune_warmup: int = Field(
        5, ge=0, description="Updates of a trial, steps of an sft trial, and trials of the study, before that."
    )

    # What counts as better
    eval_split: str = Field("test", description="Held-out part of the tasks; '' where the environment has no parts.")
    eval_tasks: int = Field(200, ge=1, description="Tasks that each run is evaluated on, the same for all.")
    eval_env_kwargs: Annotated[dict[str, Any], Json] = Field(
        {}, description="Arguments of gym.make for the evaluation in place of those in env_kwargs, as JSON."
    )
    eval_turn_tokens: int = Field(256, ge=1, description="Most new tokens in a turn, where the recipe is of sft.")

    # The run itself
    seed: int = Field(0, ge=0, lt=2**31, description="Seeds the search, the trials and the evaluation.")
    output_dir: Path = Field(Path("runs"), description="Parent of the study's folder.")
    name: str | None = Field(None, description="Name of the study's folder; tune, the recipe and the seed when unset.")
    overwrite: bool = Field(False, description="Begin again, instead of going on with what the folder holds.")

    @model_validator(mode="after")
    def _together(self) -> Self:
        taken = [key for key in ("seed", "output_dir", "name", "resume", "overwrite") if key in self.options]
        if taken:
            raise ValueError(f"options holds {', '.join(taken)}, which the tuning run decides itself")
        return self

    @property
    def kind(self) -> type[GRPOConfig] | type[SFTConfig]:
        """Whose options are tuned."""
        return SFTConfig if self._recipe_values().get("algorithm") == "sft" else GRPOConfig

    @property
    def search(self) -> Method:
        """The method, the preset's where none is set."""
        if self.method is not None:
            return self.method
        return PRESETS[self.preset].method if self.preset else "random"

    @property
    def dimensions(self) -> Space:
        """The space, the preset's where none is set.

        Raises:
            ConfigError: When it is empty or has something that cannot be tuned.
        """
        return read_space(self.space or (PRESETS[self.preset].space if self.preset else {}), self.kind)

    @property
    def count(self) -> int:
        """How many trials there will be."""
        wanted = self.trials or (PRESETS[self.preset].trials if self.preset else None)
        if self.search != "grid":
            return wanted or 10
        everything = len(grid(self.dimensions))
        return everything if self.trials is None else min(self.trials, everything)

    def base(self) -> dict[str, Any]:
        """Return the values that trials have in common.

        Raises:
            ConfigError: When there is no such recipe, or it has a key that does not exist.
        """
        preset = PRESETS[self.preset].options if self.preset else {}
        values = {**self._recipe_values(), **preset, **self.options}
        for key in values:
            if key not in self.kind.model_fields:
                raise UnknownNameError("option", key, self.kind.model_fields, f"It is set in {self.recipe} or options.")
        return values

    def base_options(self) -> GRPOConfig | SFTConfig:
        """Return :meth:`base` as options.

        Raises:
            ConfigError: When a value is not allowed.
        """
        return read_options(self.kind, self.base(), command="tune")

    def trial(self, parameters: Mapping[str, Any], *, seed: int, folder: Path, **more: Any) -> GRPOConfig | SFTConfig:
        """Return the options of one run.

        Args:
            parameters: What the trial tries, by option.
            seed: Of the run.
            folder: Where it goes.
            **more: ``resume`` or ``overwrite``.

        Raises:
            ConfigError: When these values do not go together.
        """
        own = {"seed": seed, "output_dir": folder.parent, "name": folder.name, "keep_checkpoints": 1, **more}
        return read_options(self.kind, {**applied(self.base(), parameters), **own}, command="tune")

    def _recipe_values(self) -> dict[str, Any]:
        sft = self.recipe in recipes_of(SFTConfig)
        if not sft and not self.recipe.endswith((".yaml", ".yml")) and self.recipe not in recipes_of(GRPOConfig):
            raise UnknownNameError(
                "recipe", self.recipe, [*recipes_of(GRPOConfig), *recipes_of(SFTConfig)], "Or give a .yaml file."
            )
        path = recipe_file(SFTConfig if sft else GRPOConfig, self.recipe)
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"{path} cannot be read as YAML: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError(f"{path} must hold a mapping of options, got {type(values).__name__}.")
        return values


def load_tune_config(source: str | Path | Mapping[str, Any], args: Sequence[str] = ()) -> TuneConfig:
    """Read the options of a tuning run; see :func:`trajgym.trainers.options.read_options`.

    Args:
        source: A YAML file, or the values themselves.
        args: Command-line overrides such as ``["--preset", "grid"]``.

    Raises:
        ConfigError: For a key or a value that is not allowed; names it.
        SystemExit: After ``--help``, and for an option that does not exist, with the closest ones printed.
    """
    return read_options(TuneConfig, source, args, command="tune")
