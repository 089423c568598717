"""Optimiser steps on a batch of groups and their advantages."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trajgym.errors import TrainingError
from trajgym.trainers.advantages import Advantages
from trajgym.trainers.batch import Batch, MicroBatch, make_batch, normalizer_value
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.interrupt import Interrupt
from trajgym.trainers.loss import LossParts, policy_loss, sampler_weights
from trajgym.trainers.masters import Masters
from trajgym.trainers.metrics import no_signal
from trajgym.trainers.models import Reference
from trajgym.trainers.ranks import Ranks
from trajgym.trainers.schedule import lr_factor
from trajgym.trainers.sharding import Shards, gathered, like
from trajgym.trainers.step_guard import StepGuard
from trajgym.trainers.stopwatch import Stopwatch
from trajgym.trainers.token_logprobs import token_logprobs
from trajgym.trainers.token_pass import per_token
from trajgym.trainers.tree_attention import why_not_shared
from trajgym.types import Group

__all__ = ["Learner"]


class Learner:
    """The policy's weights, their optimiser and the loss.

    Args:
        model: The policy.
        config: All options.
        reference: What the KL is measured against; ``None`` without a KL.
        ranks: Who shares the work.
        shards: Whether they share the parameters too.
        watch: Measures where the time goes.
        device: Where the model is.
        folder: Named in messages.
    """

    def __init__(
        self,
        model: Any,
        config: GRPOConfig,
        *,
        reference: Reference | None,
        ranks: Ranks,
        shards: Shards,
        watch: Stopwatch,
        device: torch.device,
        folder: Path,
    ) -> None:
        self.model, self.config, self.reference, self.device = model, config, reference, device
        self.kl_coef = config.kl_coef
        self.clean = True  # the weights are those of a finished update, and of no step beyond
        self.processed = 0  # tokens that went through models here, padding included
        self._ranks, self._shards, self._watch = ranks, shards, watch
        self.guard = StepGuard("policy", f"Lower learning_rate, or look at the trajectories in {folder}.")
        self.share, self.sharing = self._look_for_sharing()
        self._masters = Masters(p for p in model.parameters() if p.requires_grad)
        self._parameters = self._masters.trained
        self.optimizer = torch.optim.AdamW(self._parameters, lr=config.learning_rate, weight_decay=config.weight_decay)

    def learn(
        self,
        groups: Sequence[Group],
        advantages: Sequence[Advantages],
        interrupt: Interrupt,
        *,
        progress: tuple[float, float],
    ) -> dict[str, float]:
        """Take an update's optimiser steps and return what is worth knowing of them.

        Args:
            groups: The batch.
            advantages: Of every group, one per turn of each trajectory, or one per token of each turn.
            interrupt: Asked before the first step; later ones finish what was begun.
            progress: Shares of the run, 0 … 1, at which the update begins and ends.
        """
        config = self.config
        batches = [self.lay_out(groups[part], advantages[part]) for part in _parts(len(groups), config.minibatches)]
        steps = [*range(len(batches))] * config.inner_epochs
        shares = [self._ranks.mine(batch.micro) for batch in batches]
        old: list[list[Tensor]] = []
        if len(steps) > 1:  # later steps start from other weights than the ones that sampled
            with self._shards.whole(self.model):
                self._ranks.together(lambda: old.extend(map(self._old_logprobs, shares)))
        sums = dict.fromkeys(("loss", "kl", "entropy", "clip", "gap", "capped"), 0.0)
        grad_norm = 0.0
        self.guard.skipped = 0
        for s, b in enumerate(steps):
            if not batches[b].micro:
                continue
            before = old[b] if old else [None] * len(shares[b])
            stop = interrupt if s == 0 else None
            add = self._add_divided_gradients if self._shards.active else self._add_whole_gradients
            if wrong := add(batches[b], shares[b], before, sums, stop):
                self._skip(wrong)
                continue
            grad_norm += self._step(progress[0] + (s + 0.5) / len(steps) * (progress[1] - progress[0]))
        sums = self._ranks.total(sums)
        tokens = max(1, config.inner_epochs * sum(batch.policy_tokens for batch in batches))
        trajectories = max(1, config.inner_epochs * sum(len(group.trajectories) for group in groups))
        left_out = sum(not acts for acts in self._acting(advantages))
        out = {
            "skipped_steps": float(self.guard.skipped),
            "learning_rate": float(self.optimizer.param_groups[0]["lr"]),
            "no_signal_share": sum(map(no_signal, advantages)) / max(1, len(groups)),
            "skipped_trajectories": float(left_out),
            "groups": float(len(groups)),
        }
        if not any(batch.micro for batch in batches):
            return out  # nothing was computed, so nothing is known
        out |= {
            "loss": sums["loss"],
            "grad_norm": grad_norm / max(1, len(steps)),
            "entropy": sums["entropy"] / tokens,
            "clip_share": sums["clip"] / tokens,
            "sampler_gap": sums["gap"] / tokens,
        }
        if config.sampler_correction:
            out["capped_share"] = sums["capped"] / tokens
        if self.reference is not None:
            out |= {"kl": sums["kl"] / tokens, "kl_trajectory": sums["kl"] / trajectories}
        return out

    def lay_out(self, groups: Sequence[Group], advantages: Sequence[Advantages]) -> Batch:
        """Return the tensors of one optimiser step.

        Trajectories without a signal count in Z, or the gradient would depend on how many there are; their tokens are
        left out where nothing but the reward acts on them.
        """
        config = self.config
        everyone = [t for group in groups for t in group.trajectories]
        z, weights = normalizer_value(config.normalizer, everyone, constant=config.max_turn_tokens)
        flat = [row for group in advantages for row in group]
        kept = [i for i, acts in enumerate(self._acting(advantages)) if acts]
        tokens = sum(len(row.ids) for i in kept for row in everyone[i].rows)
        return make_batch(
            [everyone[i] for i in kept],
            [flat[i] for i in kept],
            normalizer=z,
            row_weights=[weights[i] for i in kept],
            pad_id=0,
            max_tokens=min(config.microbatch_tokens, math.ceil(tokens / self._ranks.count)),  # something for everybody
            keep_together=config.importance == "trajectory",
            share=self.share,
        )

    def _acting(self, advantages: Sequence[Advantages]) -> list[bool]:
        """Return which trajectories have a gradient: with a KL in the loss all, else those with an advantage."""
        kl_acts = self.reference is not None and self.config.kl_form != "k1_in_reward"
        return [kl_acts or not no_signal([row]) for group in advantages for row in group]

    def _look_for_sharing(self) -> tuple[bool, str]:
        """Return whether shared beginnings are computed once, and a line that says so, or why not."""
        if self.config.share_prefix == "off":
            return False, "Shared beginnings: computed for each trajectory, as share_prefix says."
        with self._shards.whole(self.model):
            longest = self.config.max_episode_tokens
            found = self._ranks.together(lambda: why_not_shared(self.model, longest))
        if reason := next(filter(None, found), ""):  # all ranks cut micro-batches alike
            return False, f"Shared beginnings: computed for each trajectory, since {reason}."
        return True, "Shared beginnings: computed once, each micro-batch as a tree."

    def logprobs(self, micro: MicroBatch, with_entropy: bool = True) -> tuple[Tensor, Tensor]:
        """Return log π and entropy of a micro-batch's policy tokens under the current weights."""
        self.processed += micro.computed
        return token_logprobs(self.model, micro.to(self.device), self.config.temperature, with_entropy)

    def reference_logprobs(self, micro: MicroBatch) -> Tensor | None:
        """Return log π_ref of a micro-batch's policy tokens, where there is a reference."""
        if self.reference is None:
            return None
        self.processed += micro.computed
        with self._watch("logprobs"):
            return self.reference.logprobs(micro.to(self.device), self.config.temperature)

    def kl_of_turns(self, groups: Sequence[Group]) -> list[list[list[float]]]:
        """Return ``Σ_y (log π − log π_ref)`` of every turn, in nats, for a KL that is part of the reward."""
        if self.reference is None:
            raise TrainingError("There is no reference policy to measure a KL against; set kl_coef above 0.")

        def gap(micro: MicroBatch) -> Tensor:
            reference = self.reference_logprobs(micro)
            assert reference is not None
            return self.logprobs(micro, False)[0] - reference

        everyone = [t for group in groups for t in group.trajectories]
        with self._shards.whole(self.model), self._shards.whole(self.reference.model), self._watch("logprobs"):
            size = self.config.microbatch_tokens
            tokens = per_token(everyone, gap, ranks=self._ranks, max_tokens=size, share=self.share)
        sums = iter([[math.fsum(turn) for turn in turns] for turns in tokens])
        return [[next(sums) for _ in group.trajectories] for group in groups]

    def _old_logprobs(self, share: Sequence[MicroBatch]) -> list[Tensor]:
        with torch.no_grad(), self._watch("logprobs"):
            return [self.logprobs(micro, False)[0] for micro in share]

    def optimizer_state(self) -> dict[str, Any]:
        """Return the optimiser's state as one process would have it; of divided weights, on the main rank alone."""
        state = self._masters.optimizer_state(self.optimizer)
        return gathered(state, keep=self._ranks.main) if self._shards.active else state

    def load_optimizer_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved :meth:`optimizer_state`."""
        self._masters.load_optimizer_state(self.optimizer, like(state, self._parameters))

    def _add_whole_gradients(
        self,
        batch: Batch,
        share: Sequence[MicroBatch],
        old: Sequence[Tensor | None],
        sums: dict[str, float],
        interrupt: Interrupt | None,
    ) -> str:
        """Add up the gradients of a batch over all ranks; return what was no number in them, if anything."""
        work = partial(self._add_gradients, share, old, batch.normalizer, sums, interrupt)
        wrong = [error for error in self._ranks.together(work) if error]
        if not wrong:
            self._ranks.add_gradients(self._parameters)
        return wrong[0] if wrong else ""

    def _add_divided_gradients(
        self,
        batch: Batch,
        share: Sequence[MicroBatch],
        old: Sequence[Tensor | None],
        sums: dict[str, float],
        interrupt: Interrupt | None,
    ) -> str:
        """Do the same where each pass gathers parameters from all ranks, and adds their gradients.

        All ranks make the same passes: one that has no micro-batch left goes through a few tokens for nothing. Whatever
        goes wrong on one ends the round on all of them, between two passes.
        """
        reference: list[Tensor | None] = [None] * len(share)
        if self.reference is not None:
            with self._shards.whole(self.reference.model):
                found = [error for error in self._ranks.together(partial(self._refer, share, reference)) if error]
            if found:
                return found[0]
        for k in range(math.ceil(len(batch.micro) / self._ranks.count)):
            losses: list[Tensor] = []
            known = (share[k].to(self.device), old[k], reference[k]) if k < len(share) else None
            forward = partial(self._forward, known, batch, sums, losses, interrupt)
            wrong = [error for error in self._ranks.together(forward, joint=True) if error]
            if wrong:
                return wrong[0]
            self._ranks.together(partial(_backward, losses), joint=True)
            self._masters.collect()
        return ""

    def _refer(self, share: Sequence[MicroBatch], reference: list[Tensor | None]) -> str:
        try:
            reference[:] = [self.reference_logprobs(micro) for micro in share]
        except TrainingError as error:
            return str(error)
        return ""

    def _forward(
        self,
        known: tuple[MicroBatch, Tensor | None, Tensor | None] | None,
        batch: Batch,
        sums: dict[str, float],
        losses: list[Tensor],
        interrupt: Interrupt | None,
    ) -> str:
        """Put the loss of a micro-batch, or 0 of a pass without one, into ``losses``; return what was no number."""
        try:
            if known is None:
                few = batch.micro[0].ids[:1, :2].to(self.device)
                losses.append(self.model(input_ids=few, use_cache=False).logits.sum() * 0.0)
            else:
                micro, before, ref = known
                losses.append(self._loss(micro, batch.normalizer, before, ref, sums).loss)
        except TrainingError as error:  # raised after the pass, which every rank has made
            return str(error)
        if interrupt is not None:
            interrupt.check()
        return ""

    def _add_gradients(
        self,
        share: Sequence[MicroBatch],
        old: Sequence[Tensor | None],
        normalizer: float,
        sums: dict[str, float],
        interrupt: Interrupt | None,
    ) -> str:
        """Add the gradients of this rank's micro-batches; return what was no number in them, if anything."""
        try:
            for cpu, before in zip(share, old, strict=True):
                if interrupt is not None:
                    interrupt.check()  # gradients so far are dropped; the weights are untouched
                micro = cpu.to(self.device)
                _backward([self._loss(micro, normalizer, before, self.reference_logprobs(micro), sums).loss])
        except TrainingError as error:
            return str(error)
        return ""

    def _loss(
        self,
        micro: MicroBatch,
        normalizer: float,
        old: Tensor | None,
        reference: Tensor | None,
        sums: dict[str, float],
    ) -> LossParts:
        """Return the loss of a micro-batch, and add what is logged of it to ``sums``."""
        config = self.config
        logp, entropy = self.logprobs(micro)
        before = logp.detach() if old is None else old
        spans = {"token": None, "turn": micro.turns, "trajectory": micro.trajectories}
        weights = None
        if config.sampler_correction:
            weights = sampler_weights(before, micro.sampler_logp, cap=config.sampler_cap)
            uncapped = (before - micro.sampler_logp).exp()
            sums["capped"] += (uncapped > config.sampler_cap).sum().item()
        rows = micro.row_weights
        parts = policy_loss(
            logp,
            before,
            micro.advantages,
            normalizer=normalizer,
            level=config.importance,
            spans=spans[config.importance],
            objective=config.objective,
            clip_low=config.clip_range,
            clip_high=config.clip_range_high,
            cispo_cap=config.cispo_cap,
            dual_clip=config.dual_clip,
            weights=weights,
            ref_logp=reference,
            kl_coef=self.kl_coef,
            kl_form=config.kl_form,
            kl_weights=rows if weights is None else rows * weights,  # the KL is one of π's distributions too
        )
        sums["loss"] += parts.loss.item()
        sums["kl"] += parts.kl.item()
        sums["clip"] += parts.ratio_clipped.item()
        sums["entropy"] += entropy.sum().item()
        sums["gap"] += (logp.detach() - micro.sampler_logp).abs().sum().item()
        return parts

    def _skip(self, reason: str) -> None:
        """Leave a step out on all ranks; where the weights of one are damaged, all of them stop."""
        self._shards.release(self.model)
        self._masters.collect()  # or what is left of them would count in the next step
        self._ranks.together(lambda: self.guard.skip(reason, self._parameters))

    def _step(self, progress: float) -> float:
        """Take one optimiser step at ``progress`` (0 … 1) of the run; return the gradient's norm before clipping."""
        factor = lr_factor(progress, self.config.warmup_ratio, self.config.lr_schedule)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * factor
        norm = float(gathered(torch.nn.utils.clip_grad_norm_(self._parameters, self.config.max_grad_norm), keep=True))
        if not math.isfinite(norm):
            self._skip(f"The gradient's norm is {norm}.")
            return 0.0
        self.guard.done()
        self.clean = False
        self.optimizer.step()
        self._masters.publish()
        self.optimizer.zero_grad(set_to_none=True)
        return norm


def _parts(count: int, parts: int) -> list[slice]:
    """Cut ``range(count)`` into at most ``parts`` runs of nearly equal length."""
    bounds = [round(i * count / parts) for i in range(parts + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(bounds) if b > a]


def _backward(losses: Sequence[Tensor]) -> None:
    for loss in losses:
        loss.backward()  # type: ignore[no-untyped-call]
