"""A trained reward model, read from its folder, as a function of texts; torch is imported when one is loaded.

What the model reads is written here for its training as well (:func:`reward_tokens`): the question and the policy's own
words as one exchange in the model's chat template, with the control tokens in both broken up.
"""

from __future__ import annotations

import functools
import json
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from trajgym.errors import CheckpointError, ConfigError, EnvironmentFault, UnknownNameError
from trajgym.rewards.judge import RewardModel

__all__ = ["FACTS", "LearnedReward", "Scale", "learned_reward", "load_reward_model", "model_folder", "reward_tokens"]

FACTS = "reward.json"
"""Beside the weights: what is known of the scores (``mean_score``) and how long a text may be (``max_length``)."""

Scale: TypeAlias = Literal["chance", "raw"]

_SCALES = ("chance", "raw")
_ON_A_GPU = 16  # texts in one pass


class LearnedReward:
    """Scores pairs (question, own words); what :class:`trajgym.rewards.RewardModel` takes.

    A Bradley–Terry model tells texts apart up to a constant, so its scores as such have no zero. On the scale
    ``"chance"`` a text is worth ``σ(r − r̄)``, the probability that it is preferred to one with the mean score ``r̄`` of
    the model's training: from 0 to 1, and no answer is worth less than none at all. ``"raw"`` gives ``r``.

    Args:
        folder: A run folder of a reward model, or a folder of Hugging Face's format with one.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, …
        batch_size: Most texts in one pass. Left out, one on a CPU, where a score then depends on its text alone, to the
            last bit; 16 elsewhere.
        max_length: Most tokens of question and words; of a longer text the middle is left out. The model's own limit
            when left out.
        scale: See above.

    Raises:
        ConfigError: When there is no reward model, or an option has a value it cannot have.
        CheckpointError: When its weights are damaged.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        device: str = "auto",
        batch_size: int | None = None,
        max_length: int | None = None,
        scale: Scale = "chance",
    ) -> None:
        if scale not in _SCALES:
            raise UnknownNameError("scale", scale, _SCALES)
        for name, value in (("batch_size", batch_size), ("max_length", max_length)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}.")
        self.folder, self.scale = model_folder(folder), scale
        self._options: dict[str, Any] = {
            "device": device, "batch_size": batch_size, "max_length": max_length, "scale": scale
        }  # fmt: skip
        self._lock = threading.Lock()
        self._model, self._tokenizer, self._device = _load(self.folder, device)
        facts = _facts(self.folder)
        self.mean_score = float(facts.get("mean_score", 0.0))
        positions = getattr(self._model.config.get_text_config(), "max_position_embeddings", None) or 2**20
        self.max_length = min(max_length or int(facts.get("max_length", positions)), positions)
        self.batch_size = batch_size or (1 if self._device.type == "cpu" else _ON_A_GPU)

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the score of each (question, own words).

        Raises:
            EnvironmentFault: When a score is not a finite number.
        """
        ids = [reward_tokens(self._tokenizer, question, words, most=self.max_length) for question, words in pairs]
        scores = [0.0] * len(ids)
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))  # little padding
        with self._lock:
            for start in range(0, len(order), self.batch_size):
                batch = order[start : start + self.batch_size]
                for i, score in zip(batch, self._scores([ids[i] for i in batch]), strict=True):
                    scores[i] = score
        if not all(map(math.isfinite, scores)):
            raise EnvironmentFault(f"The reward model in {self.folder} gives scores that are not finite numbers.")
        return [_chance(score - self.mean_score) for score in scores] if self.scale == "chance" else scores

    def _scores(self, rows: Sequence[Sequence[int]]) -> list[float]:
        import torch

        width = max(map(len, rows))
        pad = self._model.config.get_text_config().pad_token_id
        ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], device=self._device)
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=self._device)
        with torch.inference_mode():
            logits = self._model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        return [float(value) for value in logits[:, 0].float()]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r}, scale={self.scale!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), **self._options), (str(self.folder),)


def load_reward_model(folder: str | Path, **options: Any) -> LearnedReward:
    """Return the reward model of a folder as a function of (question, own words) pairs.

    Args:
        folder: A run folder of a reward model, or a folder of Hugging Face's format with one.
        **options: See :class:`LearnedReward`.

    Raises:
        ConfigError, CheckpointError: As for :class:`LearnedReward`.
    """
    return LearnedReward(folder, **options)


def learned_reward(
    path: str | Path = "",
    *,
    device: str = "auto",
    batch_size: int | None = None,
    max_length: int | None = None,
    scale: Scale = "chance",
    timeout: float = 60.0,
) -> RewardModel:
    """Return a trained reward model as a reward term: ``gym.make(…, reward={"learned": (learned_reward(path), 1.0)})``.

    All environments of a process that ask for the same model share it, and what it has scored.

    Args:
        path: As for :class:`LearnedReward`.
        device: Likewise.
        batch_size: Likewise.
        max_length: Likewise.
        scale: Likewise.
        timeout: How long a batch may take, in seconds; then the model is out of order and the episode invalid.

    Raises:
        ConfigError, CheckpointError: As for :class:`LearnedReward`.
    """
    if not str(path):
        raise ConfigError("A learned reward needs the path of its folder: path='runs/my-reward-model'.")
    folder = model_folder(path)
    changed = max((file.stat().st_mtime_ns for file in folder.iterdir()), default=0)
    return _shared(folder.resolve(), changed, device, batch_size, max_length, scale, timeout)


@functools.lru_cache(maxsize=4)
def _shared(
    folder: Path,
    changed: int,
    device: str,
    batch_size: int | None,
    max_length: int | None,
    scale: Scale,
    timeout: float,
) -> RewardModel:
    """Load once; ``changed`` is when the folder was written last, so that a newer model is another one."""
    model = load_reward_model(folder, device=device, batch_size=batch_size, max_length=max_length, scale=scale)
    return RewardModel(model, timeout=timeout)


def reward_tokens(tokenizer: Any, question: str, words: str, *, most: int) -> list[int]:
    """Return what a reward model reads.

    Args:
        tokenizer: The model's; without a chat template the two stand a blank line apart, with the end token behind.
        question: What was asked.
        words: What the policy wrote.
        most: Most tokens; of more, as many from the end as from the beginning are kept.
    """
    said, asked = _harmless(tokenizer, words), _harmless(tokenizer, question)
    if tokenizer.chat_template is None:
        text = f"{asked}\n\n{said}{tokenizer.eos_token or ''}"
    else:
        messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(ids) <= most:
        return ids
    behind = most // 2
    return ids[: most - behind] + (ids[-behind:] if behind else [])


def model_folder(path: str | Path) -> Path:
    """Return the folder of the weights: ``path`` itself, or that of a finished run of ours.

    Raises:
        ConfigError: When there is none.
    """
    folder = Path(path).expanduser()
    for candidate in (folder, folder / "model"):
        if (candidate / "config.json").is_file():
            return candidate
    raise ConfigError(
        f"There is no reward model in {folder}. Give the folder of a finished run of `trajgym reward-model`, or one in "
        "Hugging Face's format with config.json, weights and tokenizer."
    )


def _harmless(tokenizer: Any, text: str) -> str:
    """Break up the tokenizer's control tokens in a text, and replace half surrogates, which it cannot carry."""
    text = text.encode("utf-8", "replace").decode()
    for added in tokenizer.added_tokens_decoder.values():
        token = str(added)
        if added.special and len(token) > 1:
            text = text.replace(token, f"{token[0]} {token[1:]}")
    return text


def _load(folder: Path, device: str) -> tuple[Any, Any, Any]:
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    try:
        config = AutoConfig.from_pretrained(folder)
    except Exception as error:  # the libraries below raise a dozen types; the user needs one
        raise ConfigError(f"{folder}/config.json cannot be read: {error}") from error
    kinds = config.architectures or ["none"]
    if config.num_labels != 1 or not kinds[0].endswith("ForSequenceClassification"):
        raise ConfigError(
            f"{folder} holds no reward model but {kinds[0]} with {config.num_labels} outputs; a reward model has one. "
            "Train one with `trajgym reward-model`."
        )
    try:
        where = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
        torch.empty(1, device=where)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {device!r} cannot be used here: {str(error).splitlines()[0]}") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForSequenceClassification.from_pretrained(folder, config=config, dtype="auto")
    except Exception as error:
        raise CheckpointError(f"The reward model in {folder} cannot be loaded: {error}") from error
    if model.config.get_text_config().pad_token_id is None:
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id or tokenizer.eos_token_id
    return model.to(where).eval(), tokenizer, where


def _facts(folder: Path) -> dict[str, Any]:
    file = folder / FACTS
    if not file.is_file():
        return {}
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
        return {name: facts[name] for name in ("mean_score", "max_length") if name in facts}
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{file} is damaged: {error}") from error


def _chance(difference: float) -> float:
    """Return ``σ(difference)`` without overflow."""
    if difference >= 0:
        return 1.0 / (1.0 + math.exp(-difference))
    return math.exp(difference) / (1.0 + math.exp(difference))
