"""What a run costs: memory before it begins, time and tokens of each update."""

from __future__ import annotations

from typing import Any

import torch

from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.efficiency import Credits, Passes, count_step, efficiency, peak_memory
from trajgym.trainers.memory_report import MemoryReport, available_memory, memory_report
from trajgym.trainers.peaks import Peaks, peaks_of
from trajgym.trainers.player import Played
from trajgym.trainers.ranks import Ranks
from trajgym.trainers.shape import lora_parameters, shape_of
from trajgym.trainers.stopwatch import Stopwatch
from trajgym.trainers.token_logprobs import plain_head

__all__ = ["Accounting"]


class Accounting:
    """Measures a run; made when nothing but the policy is loaded.

    Args:
        model: The policy.
        config: All options.
        ranks: Who shares the work.
        device: Where the policy is.
    """

    def __init__(self, model: Any, config: GRPOConfig, *, ranks: Ranks, device: torch.device) -> None:
        self._config, self._ranks, self._device = config, ranks, device
        self._shape = shape_of(model)
        self._itemsize = next(iter(model.parameters())).element_size()
        self._before = 0
        self._peaks: Peaks | None = None
        self.watch = ranks.watch = Stopwatch()
        loaded = sum(p.numel() * p.element_size() for p in model.parameters())
        own_head = plain_head(model) is None
        self.memory: MemoryReport = memory_report(
            self._shape, config, available_memory(str(device)), loaded=loaded, own_head=own_head
        )

    def begin(self, processed: int) -> None:
        """Begin an update.

        Args:
            processed: Tokens that have gone through models on this rank so far, padding included.
        """
        self.watch.reset()
        self._before = processed

    def end(
        self,
        played: Played,
        credited: Credits,
        *,
        passes: Passes,
        processed: int,
        seconds: float,
    ) -> dict[str, float]:
        """Return the update's metrics; to be called by every rank.

        Args:
            played: All episodes, and the groups that were learned from.
            credited: The advantages of those.
            passes: How often the update needed to go through them.
            processed: As in :meth:`begin`.
            seconds: Of the whole update.
        """
        config = self._config
        total = self._ranks.total({"processed": float(processed - self._before)})["processed"]
        if not self._ranks.main:
            return {}
        if self._peaks is None:
            self._peaks = peaks_of(str(self._device), config.dtype)
        counts = count_step(
            played.trajectories,
            played.groups,
            credited,
            passes=passes,
            slots=config.slots * (config.rollout_workers or self._ranks.count),
            processed=int(total),
            kl_acts=config.kl_coef > 0 and config.kl_form != "k1_in_reward",
        )
        beside = played.beside
        parts = self.watch.seconds() | (dict(beside.parts) if beside is not None else {})
        adapters = None
        if config.use_lora:
            adapters = lora_parameters(self._shape, rank=config.lora_rank, targets=config.lora_targets)
        found = efficiency(
            self._shape,
            counts,
            parts,
            seconds,
            self._peaks,
            itemsize=self._itemsize,
            adapters=adapters,
            ranks=self._ranks.count,
            waited=None if beside is None else beside.waited,
            workers=config.rollout_workers,
        )
        spent = {f"time/{part}": value for part, value in parts.items()}
        return found.metrics() | spent | {"memory/peak": peak_memory(str(self._device)) / 2**30}
