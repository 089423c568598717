"""How a run grows over devices: which plan, what each device holds, and how batch and learning rate go together.

Plans, and what each rank keeps of the model with N ranks:

    single   everything, in one process
    ddp      everything; gradients are added
    zero2    all weights, 1/N of gradients and optimiser states (DeepSpeed)
    zero3    1/N of weights, gradients and optimiser states, in the host's memory (DeepSpeed)
    fsdp     1/N of weights, gradients and optimiser states, by torch itself; what `trajgym train` divides them with

Source: ZeRO, arXiv 1910.02054; FSDP, arXiv 2304.11277.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trajgym.errors import ConfigError, UnknownNameError
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.memory import MemoryEstimate, estimate
from trajgym.trainers.memory_report import MemoryReport
from trajgym.trainers.shape import ModelShape

__all__ = [
    "ENGINES",
    "LARGE",
    "PLANS",
    "Plan",
    "choose_plan",
    "divided_memory",
    "memory_per_device",
    "scaled_learning_rate",
    "total_batch",
]

PLANS = ("single", "ddp", "zero2", "zero3", "fsdp")
ENGINES = ("fsdp", "deepspeed")
LARGE = 7_000_000_000  # weights above which a model is divided, whatever else
_GIB = 1 << 30
_ROOM = 0.9  # of a device's memory; allocators take the rest


@dataclass(frozen=True)
class Plan:
    """How to distribute a run.

    Args:
        name: One of ``PLANS``.
        processes: On all machines together, one per GPU.
        machines: How many computers.
        reason: Why this plan, for people.
    """

    name: str
    processes: int
    machines: int = 1
    reason: str = ""

    def __post_init__(self) -> None:
        if self.name not in PLANS:
            raise UnknownNameError("plan", self.name, PLANS)
        _at_least_one(processes=self.processes, machines=self.machines)
        if self.processes % self.machines:
            raise ConfigError(
                f"{self.processes} processes do not divide evenly among {self.machines} machines; each machine runs "
                "as many as the others. Change one of the two."
            )
        if self.name == "single" and self.processes > 1:
            raise ConfigError(f"The plan 'single' is one process, got {self.processes}. Choose another plan.")


def choose_plan(
    parameters: float,
    gpus: int,
    *,
    machines: int = 1,
    engine: str = "fsdp",
    need: MemoryEstimate | None = None,
    device_memory: float = 80 * _GIB,
) -> Plan:
    """Return the plan that suits a model and the machines.

    One GPU needs none. Up to 7 billion weights on one machine: ``ddp``, unless the run is known not to fit so. Above,
    the model is divided: by ``fsdp``, or by DeepSpeed, ``zero2`` where whole weights leave half of a device free, else
    ``zero3``. Several machines divide in any case, with DeepSpeed as ``zero3``.

    Args:
        parameters: Weights of the model, as a number such as 8e9.
        gpus: On all machines together.
        machines: How many computers.
        engine: What divides parameters: ``"fsdp"``, or ``"deepspeed"``, which `trajgym train` does not drive.
        need: What one process alone would need, where that is known.
        device_memory: Bytes of each GPU.

    Raises:
        ConfigError: For numbers that cannot be.
        UnknownNameError: For an unknown engine.
    """
    if engine not in ENGINES:
        raise UnknownNameError("engine", engine, ENGINES)
    _positive(parameters=parameters, device_memory=device_memory)
    _at_least_one(gpus=gpus, machines=machines)
    if gpus < machines:
        raise ConfigError(f"{machines} machines have at least {machines} GPUs, got {gpus}; gpus counts all of them.")
    divided = {"fsdp": "fsdp", "deepspeed": "zero3"}[engine]
    if gpus == 1:
        return Plan("single", 1, reason="there is one GPU")
    if machines > 1:
        slow = f"{machines} machines, whose weights travel over the network"
        return Plan(divided, gpus, machines, reason=slow)
    if parameters > LARGE:
        reason = f"{_count(parameters)} weights are more than {_count(LARGE)}"
        if engine == "deepspeed" and _whole_weights(parameters, need) <= device_memory / 2:
            return Plan("zero2", gpus, reason=f"{reason}; whole weights leave half of each GPU free")
        return Plan(divided, gpus, reason=reason)
    if need is not None and need.peak > _ROOM * device_memory:
        reason = f"one process would need {need.peak / _GIB:.1f} GiB of {device_memory / _GIB:.0f} GiB"
        return Plan(divided, gpus, reason=reason)
    return Plan("ddp", gpus, reason=f"{_count(parameters)} weights fit on each of {gpus} GPUs")


def memory_per_device(plan: Plan, need: MemoryEstimate) -> int:
    """Return the bytes that the fullest moment of a run takes on each device.

    With parameters divided, one whole set of weights is there during the rollout, and for log-probabilities of old or
    reference weights; the update holds shares, and a block at a time on top, which is not counted. Shares in the
    host's memory count 0.

    Args:
        plan: How the run is distributed.
        need: What one process alone would need.
    """
    if plan.name in ("single", "ddp"):
        return need.peak
    n = plan.processes
    if plan.name == "zero2":
        held = need.models + (need.copies + need.optimizer) // n
        update = need.gradients // n + need.activations + max(need.logits, need.recomputed)
        return held + max(need.cache + need.rollout, update)
    here = plan.name == "fsdp"
    held = (need.models + need.copies + need.optimizer) // n if here else 0
    update = (need.gradients // n if here else 0) + need.activations + max(need.logits, need.recomputed)
    once = need.policy + need.logits  # a pass without a gradient
    return held + max(need.policy + need.cache + need.rollout, once, update)


def divided_memory(shape: ModelShape, config: GRPOConfig, processes: int, available: int | None) -> MemoryReport:
    """Compare what each rank needs, with parameters divided, with what there is.

    Args:
        shape: The policy's sizes.
        config: The run's options.
        processes: Among how many the parameters are divided.
        available: Bytes that are free on the device; ``None`` when nobody knows.
    """
    alone = estimate(shape, config, own_head=True)  # divided weights have no head that could be called by itself
    peak = memory_per_device(Plan("fsdp", processes), alone)
    there = "" if available is None else f"; {_size(available)} are there"
    line = (
        f"Memory: weights are divided among {processes} ranks, about {_size(peak)} each with everything else "
        f"({_size(alone.peak)} undivided){there}."
    )
    if available is None or peak <= _ROOM * available:
        return MemoryReport(line, "")
    return MemoryReport(
        line,
        f"This run may need {_size(peak)} on each rank, and {_size(available)} are free. More ranks, fewer slots, a "
        "smaller microbatch_tokens, dtype bfloat16 or use_lora would help.",
    )


def total_batch(per_device: int, gpus: int, accumulation: int = 1) -> int:
    """Return how many samples one optimiser step sees.

    >>> total_batch(4, 1, 4), total_batch(4, 4, 1)
    (16, 16)

    Raises:
        ConfigError: When one of them is below 1.
    """
    _at_least_one(per_device=per_device, gpus=gpus, accumulation=accumulation)
    return per_device * gpus * accumulation


def scaled_learning_rate(rate: float, base_batch: int, new_batch: int, rule: str = "sqrt") -> float:
    """Return the learning rate for another batch size.

    ``"sqrt"`` keeps the spread of AdamW's steps, ``"linear"`` the mean of SGD's.

    Args:
        rate: What suits ``base_batch``.
        base_batch: Samples of an optimiser step that the rate was found with.
        new_batch: Samples of an optimiser step from now on.
        rule: ``"sqrt"``, ``rate·√(new/base)``, or ``"linear"``, ``rate·new/base``.

    Source: square root, arXiv 1404.5997 and, for Adam, arXiv 2205.10287; linear, arXiv 1706.02677.

    >>> round(scaled_learning_rate(5e-5, 16, 64), 10), round(scaled_learning_rate(5e-5, 16, 64, "linear"), 10)
    (0.0001, 0.0002)

    Raises:
        ConfigError: For numbers that cannot be.
        UnknownNameError: For another rule.
    """
    if rule not in ("sqrt", "linear"):
        raise UnknownNameError("scaling rule", rule, ("sqrt", "linear"))
    _positive(rate=rate)
    _at_least_one(base_batch=base_batch, new_batch=new_batch)
    factor = new_batch / base_batch
    return rate * (math.sqrt(factor) if rule == "sqrt" else factor)


def _whole_weights(parameters: float, need: MemoryEstimate | None) -> float:
    """Return the bytes of all models; unless they are known, of policy and reference in bfloat16."""
    return need.models if need is not None else 2 * 2 * parameters


def _count(parameters: float) -> str:
    return f"{parameters / 1e9:.3g} billion" if parameters >= 1e8 else f"{parameters / 1e6:.3g} million"


def _size(size: int) -> str:
    return f"{size / _GIB:.1f} GiB" if size >= _GIB / 10 else f"{size / (1 << 20):.1f} MiB"


def _at_least_one(**numbers: int) -> None:
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ConfigError(f"{name} must be a whole number of at least 1, got {number!r}.")


def _positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number < math.inf:
            raise ConfigError(f"{name} must be a number above 0, got {number!r}.")
