"""The options of the whole chain: one section for what all stages share, one for each kind of stage.

The sections and the names in them are those of the founding document, whose JSON files can be read as they are; what a
trainer calls something may be used in ``sft`` and ``grpo`` too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.trainers.compat_monitor import monitors_of
from trajgym.trainers.compat_names import NAMES, in_our_names
from trajgym.trainers.config import GRPOConfig, load_config
from trajgym.trainers.options import Json, Options, read_options, recipe_file, recipes_of
from trajgym.trainers.sft_config import SFTConfig, load_sft_config

__all__ = ["PipelineConfig", "load_pipeline_config", "pipeline_recipe_names"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class ModelSection(_Section):
    """What is trained."""

    base_model: str = Field(default="tiny", description="'tiny' (embedded), a folder, or a Hugging Face hub id.")
    dtype: Literal["float32", "bfloat16"] = Field(default="float32", description="Weights' number format.")
    device: str = Field(default="auto", description="'auto', 'cpu', 'cuda', 'cuda:1', …")
    thinking: bool = Field(default=False, description="Let the chat template open a reasoning block, where it has one.")


class DataSection(_Section):
    """On what it is trained and measured."""

    env: str = Field(
        default="GSM8KTool-v0", description="Environment id: its problems are imitated, played and evaluated on."
    )
    env_kwargs: Annotated[dict[str, Any], Json] = Field(default={}, description="Arguments of gym.make, as JSON.")
    protocol: str = Field(default="auto", description="Written form of tool calls; 'auto' takes the chat template's.")
    dataset: str = Field(
        default="expert",
        description="What SFT imitates: 'expert' plays the environment's demonstrations; or as for trajgym sft.",
    )
    max_samples: int | None = Field(
        default=1000, ge=1, description="Train on the first so many problems; all when unset."
    )


class EvalSection(_Section):
    """How it is measured."""

    max_samples: int = Field(
        default=200, ge=1, description="Problems that every model is measured on, the same for all."
    )
    split: str = Field(default="test", description="The part of the problems they are from.")
    baseline: bool = Field(default=True, description="Measure the base model too, before anything is trained.")
    sft_accuracy_threshold: float = Field(
        default=0.40, ge=0, le=1, description="Below this accuracy after SFT no RL is begun."
    )


class MonitoringSection(_Section):
    """Where the numbers of the trainings go besides the run folder."""

    use_tensorboard: bool = Field(default=True, description="Write TensorBoard events.")
    use_wandb: bool = Field(default=False, description="Log to Weights & Biases.")
    wandb_project: str | None = Field(
        default=None, description="The project there; $WANDB_PROJECT, or trajgym, when unset."
    )


class DeploySection(_Section):
    """What is written in the end."""

    model: Literal["auto", "sft", "grpo"] = Field(
        default="auto", description="Which model; 'auto' takes GRPO's unless it is clearly worse than SFT's."
    )
    dtype: Literal["float32", "bfloat16"] | None = Field(
        default=None, description="Its number format; model.dtype when unset."
    )


class PipelineConfig(Options):
    """Options of ``trajgym pipeline``. Every key has an effect; unknown keys are refused."""

    algorithm: Literal["pipeline"] = Field("pipeline", description="The whole chain, from data to deployment.")
    model: ModelSection = Field(ModelSection(), description="What is trained.")
    data: DataSection = Field(DataSection(), description="On what.")
    sft: Annotated[dict[str, Any] | None, Json] = Field(
        {}, description="Options of trajgym sft, as JSON; null leaves the stage out. One alone: --sft.epochs 2"
    )
    grpo: Annotated[dict[str, Any], Json] = Field(
        {}, description="Options of trajgym train, as JSON. One alone: --grpo.epochs 2"
    )
    eval: EvalSection = Field(EvalSection(), description="How the models are measured.")
    deploy: DeploySection = Field(DeploySection(), description="What is written in the end.")
    monitoring: MonitoringSection = Field(MonitoringSection(), description="Where numbers go.")

    seed: int = Field(0, ge=0, lt=2**32, description="Seeds everything.")
    output_dir: Path = Field(Path("runs"), description="Parent of the run folder, and of the history of all runs.")
    name: str | None = Field(None, description="Name of the run folder; the recipe's name and the seed when unset.")
    overwrite: bool = Field(False, description="Begin again, instead of going on with what the folder holds.")

    def sft_config(self, folder: Path) -> SFTConfig:
        """Return the options of the SFT stage.

        Args:
            folder: The pipeline's run folder.

        Raises:
            ConfigError: For a key or a value that is not allowed, or that is set elsewhere.
        """
        own = {**self._shared(folder), "dataset": self.data.dataset, "max_samples": self.data.max_samples}
        return load_sft_config({**own, **self._given("sft", own)})

    def grpo_config(self, folder: Path, model: str, *, finite: bool) -> GRPOConfig:
        """Return the options of the GRPO stage.

        Args:
            folder: The pipeline's run folder.
            model: What it starts from.
            finite: Whether the environment has so many problems and no more.

        Raises:
            ConfigError: As :meth:`sft_config`.
        """
        own = {**self._shared(folder), "model": model, "max_samples": self.data.max_samples if finite else None}
        return load_config({**own, **self._given("grpo", own)})

    def _shared(self, folder: Path) -> dict[str, Any]:
        told = self.monitoring
        return {
            "model": self.model.base_model,
            "dtype": self.model.dtype,
            "device": self.model.device,
            "thinking": self.model.thinking,
            "env": self.data.env,
            "env_kwargs": self.data.env_kwargs,
            "protocol": self.data.protocol,
            "seed": self.seed,
            "output_dir": folder,
            "monitors": monitors_of(use_tensorboard=told.use_tensorboard, use_wandb=told.use_wandb),
        }

    def _given(self, section: str, own: Mapping[str, Any]) -> dict[str, Any]:
        given = in_our_names(section, getattr(self, section) or {}, section)
        place = Path(given.pop("output_dir", own["output_dir"] / section)).expanduser()
        for key in (*own, "name", "resume", "overwrite"):
            if key in given:
                raise ConfigError(f"{section}.{key} is decided by the pipeline. Set {_HOMES[key]}.")
        known: type[Options] = SFTConfig if section == "sft" else GRPOConfig
        for key in given:
            if key not in known.model_fields:
                names = {*known.model_fields, *NAMES[section]} - {*own, "name", "resume", "overwrite"}
                raise UnknownNameError(f"option of {section}", key, names)
        return {**given, "output_dir": place.parent, "name": place.name}


_MODEL, _DATA = ("dtype", "device", "thinking"), ("env", "env_kwargs", "protocol", "dataset", "max_samples")
_HOMES = {
    "model": "model.base_model, for the model that the chain begins with",
    **{key: f"model.{key}" for key in _MODEL},
    **{key: f"data.{key}" for key in _DATA},
    "seed": "seed, for all stages",
    "monitors": "monitoring.use_tensorboard and monitoring.use_wandb",
    "name": "output_dir, whose last part it is",
    "overwrite": "overwrite, for all stages",
    "resume": "nothing: stages go on by themselves",
}


def pipeline_recipe_names() -> list[str]:
    """Return the recipes of the pipeline that ship with the package."""
    return recipes_of(PipelineConfig)


def load_pipeline_config(source: str | Path | Mapping[str, Any], args: Sequence[str] = ()) -> PipelineConfig:
    """Read the options of the pipeline; see :func:`trajgym.trainers.options.read_options`.

    Args:
        source: A recipe's name, a YAML or JSON file, or the values themselves.
        args: Command-line overrides such as ``["--sft.epochs", "2", "--eval.max-samples", "50"]``.

    Raises:
        ConfigError: For a key or a value that is not allowed; names it.
        SystemExit: After ``--help``, and for an option that does not exist, with the closest ones printed.
    """
    values = dict(source) if isinstance(source, Mapping) else _read(str(source))
    rest = _take_section_options(values, args)
    for name, kind in _SECTIONS.items():
        for key in values[name] if isinstance(values.get(name), Mapping) else ():
            if key not in kind.model_fields:
                raise UnknownNameError(f"option of {name}", key, kind.model_fields)
    return read_options(PipelineConfig, values, rest, command="pipeline")


_SECTIONS: Mapping[str, type[_Section]] = {
    "model": ModelSection,
    "data": DataSection,
    "eval": EvalSection,
    "deploy": DeploySection,
    "monitoring": MonitoringSection,
}


def _take_section_options(values: dict[str, Any], args: Sequence[str]) -> list[str]:
    """Move ``--SECTION.KEY VALUE`` into the values, where they are checked like those of a file; return the rest."""
    rest, words = [], list(args)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        section, dot, key = name.removeprefix("--").partition(".")
        if not (dot and key and section in (*_SECTIONS, "sft", "grpo") and name.startswith("--")):
            rest.append(word)
            continue
        key = key.replace("-", "_")
        off, alone = key.startswith("no_"), not words or words[0].startswith("--")
        if not equals and (off or alone) and _is_switch(section, key.removeprefix("no_")):
            key, read = key.removeprefix("no_"), not off
        elif equals or words:
            read = _value(value if equals else words.pop(0))
        else:
            raise ConfigError(f"{name} needs a value.")
        names = NAMES.get(section, {})
        kept = {k: v for k, v in (values.get(section) or {}).items() if names.get(k, k) != names.get(key, key)}
        values[section] = {**kept, key: read}
    return rest


def _is_switch(section: str, key: str) -> bool:
    """Whether an option is on or off, so that its name alone turns it on, and with ``no-`` before it off."""
    kinds: Mapping[str, type[BaseModel]] = {**_SECTIONS, "sft": SFTConfig, "grpo": GRPOConfig}
    field = kinds[section].model_fields.get(key)
    return field is not None and field.annotation is bool


def _value(text: str) -> Any:
    """Read a value as JSON where it is some, else as the text it is."""
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def _read(source: str) -> dict[str, Any]:
    path = Path(source)
    if path.suffix != ".json":
        path = recipe_file(PipelineConfig, source)
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text) or {}
    except FileNotFoundError as error:
        raise ConfigError(f"There is no configuration file {source!r}.") from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping of options, got {type(values).__name__}.")
    return values
