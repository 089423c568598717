"""Weights in 16 bits that learn in 32: what an optimiser step adds to them is too small for 16.

bfloat16 keeps 8 significant bits, so a step that is smaller than 1/512 of a weight rounds to nothing. AdamW moves each
weight by about the learning rate: at 1e-5 every weight above 0.005 would stand still for ever, whatever its gradient
says. So the optimiser moves float32 copies, and the model gets them rounded to its own numbers. It samples, and is
trained, with those: both sides have the same weights, at the cost of 16 bits.

Source: mixed precision training, arXiv 1710.03740.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trajgym.errors import CheckpointError

__all__ = ["Masters"]


class Masters:
    """The weights that an optimiser moves.

    Those in float32 are the model's own. Of others there is a float32 copy, which also takes over their gradients, so
    that those of many micro-batches are added up in float32; a layer's gradient in 16 bits lives no longer than its
    backward pass.

    Args:
        parameters: The model's trained weights.

    Attributes:
        trained: What to give to the optimiser, to clip and to exchange: one for each of ``parameters``, in order.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._weights = list(parameters)
        self.trained: list[nn.Parameter] = []
        for weight in self._weights:
            if weight.dtype == torch.float32:
                self.trained.append(weight)
                continue
            master = nn.Parameter(weight.detach().float())
            weight.register_post_accumulate_grad_hook(partial(_hand_over, master))  # type: ignore[no-untyped-call]
            self.trained.append(master)

    def collect(self) -> None:
        """Take over gradients that came by another way than a backward pass of this process alone."""
        for master, weight in self._copied():
            _hand_over(master, weight)

    @torch.no_grad()
    def publish(self) -> None:
        """Round what the optimiser has moved to the model's numbers."""
        for master, weight in self._copied():
            weight.copy_(master)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return an optimiser's state, with each copy as ``"master"`` beside the moments of it.

        A weight without moments has not been moved yet: its copy is the model's own weight.
        """
        state = optimizer.state_dict()
        state["state"] = {
            index: {**moments, "master": self.trained[index].detach()} if self._is_copy(index) else moments
            for index, moments in state["state"].items()
        }
        return state

    @torch.no_grad()
    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; copies that it lacks stay what the model's weights are.

        Raises:
            CheckpointError: When it is that of another model.
        """
        moments = {}
        for index, entry in state["state"].items():
            moments[index] = {name: value for name, value in entry.items() if name != "master"}
            # torch would find out in the first step.
            sizes = {value.shape for value in entry.values() if isinstance(value, Tensor) and value.dim()}
            if index >= len(self.trained) or sizes - {self.trained[index].shape}:
                raise CheckpointError("The checkpoint's optimiser state and float32 weights do not fit the model.")
            if "master" in entry and self._is_copy(index):
                self.trained[index].copy_(entry["master"])
        optimizer.load_state_dict({**state, "state": moments})

    def _is_copy(self, index: int) -> bool:
        return self.trained[index] is not self._weights[index]

    def _copied(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        return [(m, w) for m, w in zip(self.trained, self._weights, strict=True) if m is not w]


def _hand_over(master: nn.Parameter, weight: Tensor) -> None:
    if weight.grad is None:
        return
    gradient, weight.grad = weight.grad, None
    if master.grad is None:
        master.grad = gradient.to(master.dtype)
    else:
        master.grad += gradient
