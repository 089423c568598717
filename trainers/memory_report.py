"""What is told of memory before a run starts, and what to do where there is too little."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.hardware import host_memory
from trajgym.trainers.memory import MemoryEstimate, estimate, models_held
from trajgym.trainers.shape import ModelShape

__all__ = ["MemoryReport", "available_memory", "memory_report", "remedies"]

_GIB = 1 << 30
_WORTH = 0.01  # of the need: what saves less is not worth a change
_ROOM = 0.9  # of what is there; allocators and other processes take the rest


@dataclass(frozen=True)
class MemoryReport:
    """What to print.

    Args:
        line: What the run needs, beside what there is.
        warning: Empty, or that it does not fit, and what to change.
    """

    line: str
    warning: str


def memory_report(
    shape: ModelShape, config: GRPOConfig, available: int | None, *, loaded: int = 0, own_head: bool = False
) -> MemoryReport:
    """Compare what a run needs with what there is.

    Args:
        shape: The policy's sizes.
        config: The run's options.
        available: Bytes that are free on the device; ``None`` when nobody knows.
        loaded: Bytes of the run that are there already, as the policy's weights are once they are loaded.
        own_head: As for :func:`trajgym.trainers.memory.estimate`.
    """
    need = estimate(shape, config, own_head=own_head)
    line = f"Memory: {_holds(config, need)}, about {_size(need.peak)} with everything else ({_largest(need)})"
    if available is not None:
        line += f"; {_size(available + loaded)} are there"
    line += "."
    if config.algorithm != "ppo":
        ppo = estimate(shape, config, algorithm="ppo", learned_reward=True, own_head=own_head)
        held = models_held("ppo")
        line += f" PPO would hold {len(held)} ({', '.join(held)}), about {_size(ppo.peak)}."
    missing = need.peak - loaded
    if available is None or missing <= _ROOM * available:
        return MemoryReport(line, "")
    return MemoryReport(
        line,
        f"This run may need {_size(missing)} more than it holds now, and {_size(available)} are free. "
        f"What would help: {'; '.join(remedies(shape, config, own_head=own_head))}.",
    )


def available_memory(device: str) -> int | None:
    """Return the bytes that are free on a device; ``None`` where nobody knows.

    Args:
        device: ``"cpu"``, ``"cuda"``, …
    """
    import torch

    place = torch.device(device)
    if place.type == "cuda":
        return int(torch.cuda.mem_get_info(place)[0])
    memory = host_memory() if place.type == "cpu" else None
    return None if memory is None else memory.available


def remedies(shape: ModelShape, config: GRPOConfig, *, own_head: bool = False) -> list[str]:
    """Return what to change, what saves most first, each with how much it saves by itself.

    Fewer or smaller groups count only where they would leave less than a full micro-batch.

    Args:
        shape: The policy's sizes.
        config: The run's options.
        own_head: As for :func:`trajgym.trainers.memory.estimate`.
    """
    peak = estimate(shape, config, own_head=own_head).peak
    saved = {}
    for text, change in _changes(config):
        saved[text] = peak - estimate(shape, config.model_copy(update=change), own_head=own_head).peak
    helping = sorted((text for text in saved if saved[text] >= _WORTH * peak), key=lambda text: -saved[text])
    return [f"{text} saves {_size(saved[text])}" for text in helping] or ["a smaller model"]


def _changes(config: GRPOConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, least in (
        ("num_generations", 2),
        ("groups_per_update", config.minibatches),
        ("slots", 1),
        ("microbatch_tokens", 1),
    ):
        now = getattr(config, name)
        if (fewer := max(least, now // 2)) < now:
            yield f"{name} {now} → {fewer}", {name: fewer}
    if (turn := config.max_turn_tokens // 2) >= 1:
        episode = max(turn + 1, config.max_episode_tokens - config.max_turn_tokens + turn)
        yield (
            f"max_turn_tokens {config.max_turn_tokens} → {turn} and max_episode_tokens "
            f"{config.max_episode_tokens} → {episode}",
            {"max_turn_tokens": turn, "max_episode_tokens": episode},
        )
    if not config.gradient_checkpointing:
        yield "gradient_checkpointing: true", {"gradient_checkpointing": True}
    if config.dtype == "float32":
        yield "dtype: bfloat16", {"dtype": "bfloat16"}
    if not config.use_lora:
        yield "use_lora: true", {"use_lora": True}
        yield "use_lora: true and quantization: 4bit", {"use_lora": True, "quantization": "4bit"}
    elif config.quantization != "4bit":
        yield "quantization: 4bit", {"quantization": "4bit"}


def _holds(config: GRPOConfig, need: MemoryEstimate) -> str:
    names = ["policy", *(["reference"] if config.kl_coef > 0 else []), *(["value"] if need.value else [])]
    names += ["sampler"] if need.sampler else []
    shared = config.use_lora and config.kl_coef > 0
    aside = " (the policy without its adapters)" if shared else ""
    aside += " (the sampler shares all but adapters)" if need.sampler and config.use_lora else ""
    return f"{' + '.join(names)} = {len(names)} model{'s'[: len(names) > 1]}{aside}, {_size(need.models)} of weights"


def _largest(need: MemoryEstimate) -> str:
    return ", ".join(f"{name} {_size(size)}" for name, size in list(need.parts().items())[:3])


def _size(size: int) -> str:
    return f"{size / _GIB:.1f} GiB" if size >= _GIB / 10 else f"{size / (1 << 20):.1f} MiB"
