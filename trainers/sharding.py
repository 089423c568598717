"""Parameters that are divided among the ranks, by torch's ``fully_shard`` (FSDP2).

Each rank keeps its share of every weight, gradient and optimiser state. Passes with a gradient gather one block at a
time, forward and backward, and every rank must run equally many of them, since gathering takes all ranks. Passes
without one, of the rollout above all, run on whole weights: gathered once by :meth:`Shards.whole`, dropped after.
There a rank runs as many passes as it likes.

Source: fully sharded data parallel, arXiv 2304.11277; ZeRO, arXiv 1910.02054.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from trajgym.errors import ConfigError
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.ranks import Ranks

__all__ = ["Shards", "gathered", "like"]

_WANTED = "Set fsdp_version: 2 in the launch file; `trajgym plan` writes one that fits."


class Shards:
    """Whether this launch divides parameters, and how.

    Args:
        ranks: Who shares.
        config: The run's options.

    Attributes:
        active: Whether parameters are divided; with one process they are not.

    Raises:
        ConfigError: For a launch or options that this trainer cannot combine with divided parameters.
    """

    def __init__(self, ranks: Ranks, config: GRPOConfig) -> None:
        self._ranks = ranks
        self._whole: set[int] = set()  # ids of models that are whole at the moment
        self._reshard = True
        self.active = ranks.count > 1 and os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
        if not self.active:
            return
        if config.algorithm != "grpo":
            raise ConfigError(
                f"algorithm {config.algorithm} keeps a whole value model on every rank, which a launch under FSDP is "
                "meant to avoid. Launch it without FSDP, or use algorithm grpo."
            )
        self._reshard = _reshard_after_forward()

    def place(self, device: torch.device) -> torch.device:
        """Return where to load a model that is to train on ``device``: no device must hold all of a divided one."""
        return torch.device("cpu") if self.active else device

    def divide(self, model: Any, device: torch.device) -> None:
        """Keep this rank's share of a model, in place; one that is divided already stays as it is.

        Args:
            model: The same on every rank; its weights are whole.
            device: Where the shares go, one block at a time.

        Raises:
            ConfigError: For weights that are no floating-point numbers.
        """
        if not self.active or _modules(model):
            return
        if not all(p.is_floating_point() for p in model.parameters()):
            raise ConfigError("Weights in 8 or 4 bits cannot be divided. Launch without FSDP, or load them in full.")
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (self._ranks.count,))
        blocks = set(getattr(model, "_no_split_modules", None) or ())
        for module in [m for m in model.modules() if type(m).__name__ in blocks] + [model]:
            fully_shard(module, mesh=mesh, reshard_after_forward=self._reshard)
        for module in _modules(model):
            # Z counts everybody, so gradients are added; gloo knows no mean anyway.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)

    @contextlib.contextmanager
    def whole(self, model: Any) -> Iterator[None]:
        """Hold all weights of a model on every rank for the length of the block; for passes without a gradient.

        To be entered by all ranks alike. A model that is not divided is whole anyway.

        Raises:
            TrainingError: When a rank does not come.
        """
        modules = _modules(model)
        if not modules or id(model) in self._whole:
            yield
            return
        self._ranks.together(lambda: None)  # who is missing is named here, before anybody waits for its weights
        self._whole.add(id(model))
        try:
            with torch.no_grad():
                for module in modules:
                    module.set_reshard_after_forward(False, recurse=False)
                    module.unshard()
            yield
        finally:
            self._whole.remove(id(model))
            self.release(model)
            for module in modules:
                module.set_reshard_after_forward(self._reshard, recurse=False)

    def to_save(self, model: Any) -> Any:
        """Return what has ``save_pretrained``, and writes what the undivided model would; to be called by all ranks."""
        if not _modules(model):
            return model
        trained = {name for name, p in model.named_parameters() if p.requires_grad}  # a tied weight has one name
        weights = {
            name: gathered(value, keep=self._ranks.main)
            for name, value in model.state_dict().items()
            if name in trained or not isinstance(value, DTensor)
        }
        return _Gathered(model, weights)

    def release(self, model: Any) -> None:
        """Drop what a pass has gathered and no backward pass has dropped; needs no other rank."""
        modules = _modules(model)
        for module in modules:
            module.reshard()
        # Forget the order of passes that no backward pass will follow: it would grow for ever. Neither torch 2.8 nor a
        # model before its first pass has something to forget.
        with contextlib.suppress(AttributeError):
            model.reset_iter_state()


class _Gathered:
    """A model with weights that stand somewhere else."""

    def __init__(self, model: Any, weights: dict[str, Tensor]) -> None:
        self._model, self._weights = model, weights

    def save_pretrained(self, folder: Path) -> None:
        """Write the weights and the configuration."""
        self._model.save_pretrained(folder, state_dict=self._weights)


def gathered(value: Any, *, keep: bool) -> Any:
    """Return a nest of dicts, lists and tensors in which every divided tensor is whole, on the CPU.

    To be called by all ranks alike; tensors are gathered one after another.

    Args:
        value: A state such as an optimiser's.
        keep: Whether this rank wants the result; where not, divided tensors come back empty.
    """
    if isinstance(value, DTensor):
        full = value.full_tensor().detach()
        return full.cpu() if keep else torch.empty(0)
    if isinstance(value, Mapping):
        return {key: gathered(item, keep=keep) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(gathered(item, keep=keep) for item in value)
    return value


def like(state: Mapping[str, Any], parameters: Iterable[Tensor]) -> dict[str, Any]:
    """Return an optimiser's whole state, divided as its parameters are; the opposite of :func:`gathered`.

    Args:
        state: ``optimizer.state_dict()`` with whole tensors; the same on every rank.
        parameters: The optimiser's, in its order.
    """
    moments = dict(state["state"])
    for index, parameter in enumerate(parameters):
        if isinstance(parameter, DTensor) and index in moments:
            moments[index] = {name: _shard(item, parameter) for name, item in moments[index].items()}
    return {**state, "state": moments}


def _shard(value: Any, parameter: DTensor) -> Any:
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value  # the number of steps
    moved = value.to(parameter.device)
    # Each rank has read the whole tensor, so it takes its own part and asks nobody.
    return distribute_tensor(moved, parameter.device_mesh, parameter.placements, src_data_rank=None)


def _modules(model: Any) -> list[Any]:
    """Return the divided parts of a model, in the order in which every rank gathers them."""
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _reshard_after_forward() -> bool:
    """Read what the launch says of FSDP; refuse what would be ignored."""
    from accelerate import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import FSDPModule

    version = os.environ.get("FSDP_VERSION", "1")
    if version != "2":
        raise ConfigError(f"This launch asks for FSDP version {version}, this trainer does version 2. {_WANTED}")
    if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        raise ConfigError(
            f"torch {torch.__version__} cannot add gradients over ranks under FSDP; update torch, or launch without."
        )
    try:
        plugin = FullyShardedDataParallelPlugin()
    except ValueError as error:
        raise ConfigError(f"The launch file's fsdp_config cannot be used: {error}") from error
    refused = {
        "fsdp_offload_params": (os.environ.get("FSDP_OFFLOAD_PARAMS", "false").lower() == "true", ""),
        "fsdp_cpu_ram_efficient_loading": (plugin.cpu_ram_efficient_loading, ""),
        "fsdp_activation_checkpointing": (plugin.activation_checkpointing, " Set gradient_checkpointing: true."),
    }
    for name, (given, instead) in refused.items():
        if given:
            raise ConfigError(f"The launch file sets {name}: true, which this trainer does not do. Drop it.{instead}")
    return bool(plugin.reshard_after_forward)
