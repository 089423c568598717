"""What every function of tokens asks of its tensors: one entry per token, and numbers only."""

from __future__ import annotations

import torch
from torch import Tensor

from trajgym.errors import TrainingError

__all__ = ["check_finite", "check_shapes"]


def check_shapes(**inputs: Tensor | None) -> None:
    """Refuse inputs that would broadcast against one another.

    Args:
        inputs: Tensors by name; ``None`` is passed over. Shape: (N,), the same N for all.

    Raises:
        TrainingError: Naming the first that differs.
    """
    given = {name: tensor for name, tensor in inputs.items() if tensor is not None}
    first, pattern = next(iter(given.items()))
    for name, tensor in given.items():
        if tensor.dim() != 1 or tensor.shape != pattern.shape:
            raise TrainingError(
                f"{name} has shape {tuple(tensor.shape)} where {first} has {tuple(pattern.shape)}; each must be (N,), "
                "one entry per policy token in the order of the micro-batch."
            )


def check_finite(advice: str, **inputs: Tensor | None) -> None:
    """Refuse infinities and NaN, which would otherwise end up in every weight.

    Args:
        advice: A sentence that says what to do about it.
        inputs: Tensors by name; ``None`` is passed over.

    Raises:
        TrainingError: Naming the inputs and at how many tokens they are not finite.
    """
    given = {name: tensor for name, tensor in inputs.items() if tensor is not None}
    # One transfer from the device for all of them.
    counts = torch.stack([(~torch.isfinite(tensor)).sum() for tensor in given.values()]).tolist()
    named = [
        f"{name} at {count} of {tensor.numel()} tokens"
        for (name, tensor), count in zip(given.items(), counts, strict=True)
        if count
    ]
    if named:
        raise TrainingError(f"Not a finite number: {', '.join(named)}. {advice}")
