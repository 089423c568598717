"""Weights on their way to workers: arrays that a reader on the same machine need not copy."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from trajgym.errors import TrainingError

__all__ = ["Packed", "pack_weights", "packed_bytes", "put_weights", "trained_names"]

Packed: TypeAlias = Mapping[str, tuple[str, NDArray[Any]]]
"""By a weight's name, its type and its numbers; those that numpy does not know are stored as integers of their size."""

_AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def trained_names(model: Any) -> frozenset[str]:
    """Return the names of what a run trains of a model: all weights, or the adapters alone; a tied weight has one."""
    return frozenset(name for name, parameter in model.named_parameters() if parameter.requires_grad)


def pack_weights(model: Any, names: frozenset[str]) -> Packed:
    """Return weights of a model, the frozen ones left out: whoever reads this has loaded the same model.

    Weights on the CPU are not copied where numpy can look at them, so the model must not move before they were sent.

    Args:
        model: Holds them.
        names: Which, from :func:`trained_names`.
    """
    packed = {}
    for name, parameter in model.named_parameters():
        if name in names:
            numbers = parameter.detach().cpu().contiguous()
            kind = str(numbers.dtype).removeprefix("torch.")
            if numbers.dtype not in (torch.float32, torch.float64, torch.float16):
                numbers = numbers.view(_AS_INTEGERS[numbers.element_size()])
            packed[name] = (kind, numbers.numpy())
    return packed


def packed_bytes(packed: Packed) -> int:
    """Return the size of all numbers."""
    return sum(numbers.nbytes for _, numbers in packed.values())


@torch.no_grad()
def put_weights(model: Any, packed: Packed) -> None:
    """Give a model the weights that :func:`pack_weights` has taken from its twin.

    Raises:
        TrainingError: When they are not those of a twin.
    """
    own = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if own.keys() != packed.keys():
        strange = sorted(own.keys() ^ packed.keys())
        raise TrainingError(
            f"The weights that were sent do not fit the worker's model: {len(strange)} names are on one side alone, "
            f"such as {strange[0]}. Is the model's folder the same on all machines?"
        )
    for name, (kind, numbers) in packed.items():
        with warnings.catch_warnings():  # shared memory must not be written to, and is not
            warnings.filterwarnings("ignore", message=".*not writable.*", category=UserWarning)
            sent = torch.from_numpy(np.asarray(numbers))
        dtype = getattr(torch, kind)
        sent = sent if sent.dtype == dtype else sent.view(dtype)
        if sent.shape != own[name].shape or dtype != own[name].dtype:
            raise TrainingError(
                f"The weight {name} was sent as {kind} {tuple(sent.shape)}, the worker's model has "
                f"{own[name].dtype} {tuple(own[name].shape)}. Is the model's folder the same on all machines?"
            )
        own[name].copy_(sent)
