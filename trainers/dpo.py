"""Direct preference optimisation: learn from preference pairs without a reward model, as a baseline.

The loss is −E log σ(β·(Δ_w − Δ_l)) with Δ = log π − log π_ref of an answer; TRL's trainer does the steps. An answer may
be a whole dialogue with tools: what the policy wrote counts, token by token, and what tools answered does not. That is
exact, since an environment's own probabilities are the same under π and π_ref and cancel in Δ.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from trajgym.errors import ConfigError, DataError, TrainingError
from trajgym.evaluation.evaluate import Share
from trajgym.policies.render import Renderer
from trajgym.trainers.data import tokenized
from trajgym.trainers.interrupt import Interrupt
from trajgym.trainers.models import add_lora, load_model, pick_device
from trajgym.trainers.preference_checks import PairReport, checked_pairs
from trajgym.trainers.preference_config import DPOConfig
from trajgym.trainers.preference_loss import dpo_loss
from trajgym.trainers.preference_run import (
    RunWatch,
    check_same_pairs,
    finished_folder,
    keep_pairs,
    pairs_digest,
    whole_model,
)
from trajgym.trainers.preference_sources import load_pairs
from trajgym.trainers.preferences import PreferencePair, Side, split_pairs
from trajgym.trainers.runfolder import RunFolder, storage_errors
from trajgym.trainers.trl_version import require_trl
from trajgym.trainers.writers import check_writers

__all__ = ["DPOReport", "pair_rows", "sequence_logprobs", "train_dpo"]

Row = dict[str, list[int]]

_NAMES = {
    "rewards/accuracies": "accuracy",
    "rewards/margins": "margin",
    "rewards/chosen": "reward_chosen",
    "rewards/rejected": "reward_rejected",
    "mean_token_accuracy": "token_accuracy",
}


@dataclass(frozen=True)
class DPOReport:
    """What a policy has learned of pairs that were held out.

    Args:
        accuracy: Pairs of which the chosen answer gained more log-probability than the rejected one.
        loss: Mean loss; log 2 before the first step.
        gain_chosen: Mean Δ of chosen answers (nats).
        gain_rejected: Mean Δ of rejected answers (nats).
    """

    accuracy: Share
    loss: float
    gain_chosen: float
    gain_rejected: float

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know."""
        if self.gain_chosen >= 0:
            return ()
        return (
            f"the chosen answers became less likely too ({self.gain_chosen:+.1f} nats): DPO only widens the distance; "
            "raise beta, lower learning_rate, or fine-tune on the chosen answers first",
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {**asdict(self), "interval": list(self.accuracy.interval), "warnings": list(self.warnings)}


def train_dpo(config: DPOConfig, *, pairs: Sequence[PreferencePair] | None = None, name: str = "dpo") -> Path:
    """Train a policy on preference pairs and return the run's folder.

    The folder holds the finished model under ``model`` with adapters merged, to be evaluated or trained on with any
    command, and ``report.json``.

    Args:
        config: All options.
        pairs: What to learn from, instead of what ``config.pairs`` names.
        name: Begins the name of the run folder when ``config.name`` is unset.

    Raises:
        ConfigError, DataError, TemplateError, CheckpointError: Before anything is computed or written.
        StorageError, TrainingError: During the run; checkpoints written so far are intact.
        Interrupted: After Ctrl-C; the last finished step was saved.
    """
    require_trl()
    check_writers(config.monitors)
    device = pick_device(config.device)
    if pairs is None:
        pairs = load_pairs(config.pairs, most_per_task=config.most_per_task, seed=config.seed)
    kept, found = checked_pairs(pairs)
    train, held_out = split_pairs(kept, config.held_out, seed=config.seed)
    # Weights that are trained stay in float32: steps are smaller than bfloat16 can tell apart.
    model, tokenizer = load_model(config.model, dtype=config.dtype if config.use_lora else "float32", device=device)
    renderer = Renderer(tokenizer, thinking=config.thinking)
    rows, long = pair_rows(train, renderer, most=config.max_length)
    if not rows:
        raise DataError(f"All {len(train)} pairs are longer than max_length ({config.max_length}) tokens. Raise it.")
    measured_on, _ = pair_rows(held_out, renderer, most=config.max_length)
    before = [_both(model, row) for row in measured_on]
    reference = None if config.use_lora else copy.deepcopy(model).requires_grad_(False)
    if config.use_lora:
        model = add_lora(
            model, rank=config.lora_rank, alpha=config.lora_alpha, targets=config.lora_targets, seed=config.seed
        )

    folder = RunFolder(config, name)  # after everything that can be wrong with the options
    weights, state = folder.load() if config.resume else (None, {})
    check_same_pairs(state, kept)
    keep_pairs(folder, kept)
    print(f"{len(rows)} pairs to learn from, {len(measured_on)} held out, of {found.given}.", flush=True)
    if long:
        print(f"  ! {long} pairs are longer than max_length ({config.max_length}) and are left out.", flush=True)
    for warning in found.warnings:
        print(f"  ! Of the pairs, {warning}.", flush=True)
    from trajgym.trainers.preference_trainers import dpo_trainer

    with Interrupt() as interrupt:
        watch = RunWatch(config, folder, interrupt, digest=pairs_digest(kept), names=_NAMES)
        trainer = dpo_trainer(
            config, model, tokenizer, rows, reference=reference, device=device, folder=folder, watch=watch
        )
        watch.run(trainer, weights, state)
    trained = whole_model(trainer.model, "float32")
    after = [_both(trained, row) for row in measured_on]
    _publish(config, trained, tokenizer, folder, found, _report(config, before, after) if after else None)
    return folder.path


def pair_rows(pairs: Sequence[PreferencePair], renderer: Renderer, *, most: int) -> tuple[list[Row], int]:
    """Return pairs as tokens, each side with a mask that is 1 where the policy wrote.

    Args:
        pairs: The pairs; an answer may have several turns where the model's template only ever appends.
        renderer: Writes a dialogue in the model's own form.
        most: Most tokens of prompt and answer.

    Returns:
        Rows ``{chosen_ids, chosen_mask, rejected_ids, rejected_mask}``, and how many pairs are too long and left out:
        cut answers would have another probability.

    Raises:
        ConfigError: For several turns, where the template rewrites its history.
        TemplateError: When the template refuses a dialogue.
    """
    rows = []
    for pair in pairs:
        if pair.turns > 1 and not renderer.append_only:
            raise ConfigError(
                f"An answer about {pair.question!r:.60} has {pair.turns} turns, and the model's chat template drops "
                "the reasoning of earlier turns from the history: the turns were written in contexts that no one row "
                "of tokens holds, and DPO compares one row with another. Set thinking: false, or give pairs of one "
                "turn each."
            )
        row: Row = {}
        sides: tuple[Side, Side] = ("chosen", "rejected")
        for side in sides:
            [tokens] = tokenized([{"prompt": pair.prompt, "completion": getattr(pair, side)}], renderer)
            row |= {f"{side}_ids": tokens["input_ids"], f"{side}_mask": tokens["completion_mask"]}
        if max(len(row["chosen_ids"]), len(row["rejected_ids"])) <= most:
            rows.append(row)
    return rows, len(pairs) - len(rows)


@torch.no_grad()
def sequence_logprobs(model: Any, ids: Sequence[int], mask: Sequence[int]) -> float:
    """Return Σ log π over the tokens whose mask is 1 (nats).

    Args:
        model: A causal language model.
        ids: Token ids of prompt and answer.
        mask: 1 where the policy wrote. The first token has nothing before it, and is never counted.
    """
    row = torch.tensor([list(ids)], device=model.device)
    logits = model(input_ids=row, use_cache=False).logits[0, :-1].float()
    logprobs = torch.log_softmax(logits, dim=-1).gather(-1, row[0, 1:, None])[:, 0]
    return float((logprobs * torch.tensor(list(mask)[1:], device=model.device)).sum())


def _both(model: Any, row: Row) -> tuple[float, float]:
    model.eval()
    chosen = sequence_logprobs(model, row["chosen_ids"], row["chosen_mask"])
    return chosen, sequence_logprobs(model, row["rejected_ids"], row["rejected_mask"])


def _report(
    config: DPOConfig, before: Sequence[tuple[float, float]], after: Sequence[tuple[float, float]]
) -> DPOReport:
    gains = torch.tensor(after, dtype=torch.float64) - torch.tensor(before, dtype=torch.float64)
    chosen, rejected = gains[:, 0], gains[:, 1]
    return DPOReport(
        accuracy=Share(int((chosen > rejected).sum()), len(gains)),
        loss=dpo_loss(chosen, rejected, config.beta).item(),
        gain_chosen=chosen.mean().item(),
        gain_rejected=rejected.mean().item(),
    )


def _publish(
    config: DPOConfig, model: Any, tokenizer: Any, folder: RunFolder, found: PairReport, report: DPOReport | None
) -> None:
    """Write the finished model and what is known of it."""
    if not all(bool(torch.isfinite(p).all()) for p in model.parameters()):
        raise TrainingError("Some weights are not finite numbers after the last step. Lower learning_rate.")

    def fill(target: Path) -> None:
        whole_model(model, config.dtype).save_pretrained(target)
        tokenizer.save_pretrained(target)

    finished_folder(folder, fill)
    if report is not None:
        low, high = report.accuracy.interval
        print(
            f"Held out: the better answer gained more in {report.accuracy.value:.1%} of {report.accuracy.trials} pairs "
            f"({low:.0%} … {high:.0%})."
        )
        for warning in report.warnings:
            print(f"  ! {warning[0].upper()}{warning[1:]}.", flush=True)
    reports = {"pairs": found.to_json(), "held_out": None if report is None else report.to_json()}
    with storage_errors(folder.path):
        (folder.path / "report.json").write_text(json.dumps(reports, indent=1) + "\n", encoding="utf-8")
