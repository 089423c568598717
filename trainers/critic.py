"""The value model of PPO: what the policy may still expect in a state, learned beside it."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trajgym.errors import TrainingError
from trajgym.trainers.batch import MicroBatch, make_batch
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.masters import Masters
from trajgym.trainers.models import checkpoint_activations
from trajgym.trainers.ranks import Ranks
from trajgym.trainers.schedule import lr_factor
from trajgym.trainers.step_guard import StepGuard
from trajgym.trainers.token_logprobs import policy_states
from trajgym.trainers.token_pass import PerToken, per_token
from trajgym.trainers.tree_attention import why_not_shared
from trajgym.trainers.value_loss import value_loss
from trajgym.types import Trajectory

__all__ = ["Critic", "ValueModel"]


class ValueModel(nn.Module):
    """A copy of the policy whose last hidden states go through a linear head.

    The head starts at zero, so that every value is 0 at first and the first advantages are plain returns.

    Args:
        policy: The model to copy; with adapters, the copy has its own.
    """

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.body = copy.deepcopy(policy).get_decoder()  # values need no vocabulary
        weight = policy.get_output_embeddings().weight
        self.head = nn.Linear(weight.shape[1], 1, device=weight.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: MicroBatch) -> Tensor:
        """Return the value of the state that each policy token was sampled in. Shape: (N,)."""
        values: Tensor = self.head(policy_states(self.body, batch).float())
        return values[:, 0]


class Critic:
    """Values of states, and their regression on what came of them.

    Args:
        policy: The model at the start of the run.
        config: ``value_*`` and the size of micro-batches.
        ranks: Who shares the work.
        device: Where the policy is.
    """

    def __init__(self, policy: Any, config: GRPOConfig, *, ranks: Ranks, device: torch.device) -> None:
        self._config, self._ranks, self._device = config, ranks, device
        self.processed = 0  # tokens that went through the model here, padding included
        self.guard = StepGuard("value model", "Lower value_learning_rate.")
        self.model = ValueModel(policy).to(device)
        if config.gradient_checkpointing:
            checkpoint_activations(self.model.body)
        self._share = config.share_prefix == "auto" and not any(
            ranks.together(lambda: why_not_shared(self.model.body, config.max_episode_tokens))
        )
        self._masters = Masters(p for p in self.model.parameters() if p.requires_grad)
        self._parameters = self._masters.trained
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=config.value_learning_rate, weight_decay=config.weight_decay
        )

    def token_values(self, trajectories: Sequence[Trajectory]) -> PerToken:
        """Return V of the state before each sampled token; a turn's own value is that before its first one."""

        def values(micro: MicroBatch) -> Tensor:
            self.processed += micro.computed
            found: Tensor = self.model(micro.to(self._device))
            return found

        return per_token(
            trajectories, values, ranks=self._ranks, max_tokens=self._config.microbatch_tokens, share=self._share
        )

    def learn(
        self, trajectories: Sequence[Trajectory], targets: PerToken, old: PerToken, weights: PerToken, progress: float
    ) -> dict[str, float]:
        """Fit the values to their targets.

        Args:
            trajectories: The batch.
            targets: What V should have been, per token.
            old: What it was, per token.
            weights: 1 where a token's state counts, 0 elsewhere: only a turn's first one where values are per turn.
            progress: Share of the run, 0 … 1, for the learning rate's schedule.

        Returns:
            ``value_loss``; ``value_explained``, the share of the targets' variance that the old values had explained,
            at most 1; ``value_skipped_steps``.
        """
        config = self._config
        rate = config.value_learning_rate * lr_factor(progress, config.warmup_ratio, config.lr_schedule)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        count = sum(w for t in weights for turn in t for w in turn)
        loss = 0.0
        self.guard.skipped = 0
        for epoch in range(config.value_epochs):
            shares = self._ranks.together(lambda: self._add_gradients(trajectories, targets, old, weights, count))
            wrong = [share for share in shares if isinstance(share, str)]
            self._ranks.add_gradients([] if wrong else self._parameters)
            norm = 0.0 if wrong else float(nn.utils.clip_grad_norm_(self._parameters, config.max_grad_norm))
            if wrong or not math.isfinite(norm):
                self.guard.skip(wrong[0] if wrong else f"The gradient's norm is {norm}.", self._parameters)
                continue
            self.guard.done()
            loss = math.fsum(share for share in shares if not isinstance(share, str)) if epoch == 0 else loss
            self._optimizer.step()
            self._masters.publish()
            self._optimizer.zero_grad(set_to_none=True)
        skipped = {"value_skipped_steps": float(self.guard.skipped)}
        return {"value_loss": loss, "value_explained": _explained(targets, old, weights)} | skipped

    def _add_gradients(
        self, trajectories: Sequence[Trajectory], targets: PerToken, old: PerToken, weights: PerToken, count: float
    ) -> float | str:
        """Add the gradients of this rank's micro-batches and return their loss, or what was no number in it."""
        laid_out = zip(*(self._micro(trajectories, n) for n in (targets, old, weights)), strict=True)
        total = 0.0
        for goal, before, counted in self._ranks.mine(list(laid_out)):
            self.processed += goal.computed
            try:
                loss = value_loss(
                    self.model(goal.to(self._device)),
                    before.advantages.to(self._device),
                    goal.advantages.to(self._device),
                    clip=self._config.value_clip,
                    weights=counted.advantages.to(self._device),
                    normalizer=max(1.0, count),
                )
            except TrainingError as error:
                return str(error)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        return total

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run must know: the trained weights and the optimiser's state."""
        trained = {n: p.detach() for n, p in self.model.named_parameters() if p.requires_grad}
        optimizer = self._masters.optimizer_state(self._optimizer)
        return {"weights": trained, "optimizer": optimizer, "skipped": self.guard.in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.model.load_state_dict(state["weights"], strict=False)
        self._masters.load_optimizer_state(self._optimizer, state["optimizer"])
        self.guard.in_a_row = int(state.get("skipped", 0))

    def _micro(self, trajectories: Sequence[Trajectory], numbers: Any) -> tuple[MicroBatch, ...]:
        return make_batch(
            trajectories,
            numbers,
            normalizer=1.0,
            pad_id=0,
            max_tokens=self._config.microbatch_tokens,
            share=self._share,
        ).micro


def _explained(targets: PerToken, values: PerToken, weights: PerToken) -> float:
    """Return ``1 − Var(target − value) / Var(target)`` over the states that count; 0 where targets are all alike."""
    triples = zip(_flat(targets), _flat(values), _flat(weights), strict=True)
    pairs = torch.tensor([(goal, goal - value) for goal, value, weight in triples if weight], dtype=torch.float64)
    if len(pairs) < 2:
        return 0.0
    spread, left = pairs.var(dim=0, correction=0).tolist()
    return 1.0 - left / spread if spread > 1e-12 else 0.0


def _flat(numbers: PerToken) -> list[float]:
    return [x for trajectory in numbers for turn in trajectory for x in turn]
