"""The options of samplers that keep weights of their own; reading them needs neither torch nor vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trajgym.errors import ConfigError, UnknownNameError

__all__ = ["ServerOptions", "VLLMOptions", "read_sampler_options"]

Kind = TypeVar("Kind", bound=BaseModel)


class VLLMOptions(BaseModel):
    """Options of :class:`trajgym.policies.vllm.VLLMSampler`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gpu_memory_utilization: float = Field(
        0.4,
        gt=0,
        le=1,
        description="Share of the GPU's memory for the engine; the trainer needs the rest.",
    )
    kv_cache_gib: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Size of the cache, in place of what that share leaves for it."
    )
    enforce_eager: bool = Field(False, description="Neither compile nor record graphs: slower, but starts at once.")
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="Numbers of the engine's weights; the trainer's when unset."
    )
    engine: dict[str, Any] = Field({}, description="Further arguments of vLLM's EngineArgs, such as kv_cache_dtype.")

    def arguments(self, dtype: str) -> dict[str, Any]:
        """Return the arguments of vLLM's engine.

        Args:
            dtype: The trainer's.

        Raises:
            ConfigError: When one is given twice.
        """
        own = {
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "enforce_eager": self.enforce_eager,
            "dtype": self.dtype or dtype,
        }
        if self.kv_cache_gib is not None:
            own["kv_cache_memory_bytes"] = round(self.kv_cache_gib * 2**30)
        twice = sorted(own.keys() & self.engine)
        if twice:
            raise ConfigError(f"sampler_options: engine holds {', '.join(twice)}, which are options of their own.")
        return {**own, **self.engine}


class ServerOptions(BaseModel):
    """Options of :class:`trajgym.policies.vllm_server.VLLMServerSampler`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(description="Address of the server, such as http://127.0.0.1:8000.")
    model: str | None = Field(None, description="What the server calls the model; the only one it has when unset.")
    folder: Path | None = Field(
        None, description="Where weights go from the trainer to the server; both must see it under this path."
    )
    timeout: float = Field(600.0, gt=0, allow_inf_nan=False, description="Seconds for one attempt at a turn.")
    attempts: int = Field(3, ge=1, description="How often a request is tried.")
    backoff: float = Field(
        1.0, ge=0, allow_inf_nan=False, description="Seconds before the second attempt; doubled each time."
    )

    @model_validator(mode="after")
    def _address(self) -> Self:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url must be a web address such as http://127.0.0.1:8000, got {self.url!r}")
        return self


def read_sampler_options(sampler: str, values: Mapping[str, Any]) -> VLLMOptions | ServerOptions | None:
    """Return the options of a sampler, checked; ``None`` for one that has none.

    Args:
        sampler: ``"hf"``, ``"vllm"`` or ``"vllm_server"``.
        values: As they stand in the configuration.

    Raises:
        UnknownNameError: For a key that the sampler does not have.
        ConfigError: For a value that is not allowed.
    """
    if sampler == "vllm":
        options = _checked(VLLMOptions, sampler, values)
        options.arguments("float32")
        return options
    if sampler == "vllm_server":
        return _checked(ServerOptions, sampler, values)
    if values:
        raise ConfigError(
            f"sampler_options {sorted(values)} mean nothing to sampler hf; vllm and vllm_server have some."
        )
    return None


def _checked(kind: type[Kind], sampler: str, values: Mapping[str, Any]) -> Kind:
    for key in values:
        if key not in kind.model_fields:
            raise UnknownNameError(
                f"option of sampler {sampler}", key, kind.model_fields, "It stands in sampler_options."
            )
    try:
        return kind(**values)
    except ValidationError as error:
        lines = []
        for item in error.errors():
            what = item["msg"].removeprefix("Value error, ")
            got = "" if item["type"] in ("missing", "value_error") else f", got {item['input']!r}"
            lines.append(f"{'.'.join(map(str, item['loc'])) or 'options'}: {what}{got}")
        raise ConfigError(f"Bad value in sampler_options of {sampler}: {'; '.join(lines)}") from error
