"""What a finished completion is worth, as a reward function of TRL's: the sum of its environment's step rewards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from trajgym.rewards.completions import Completion
from trajgym.trainers.trl_environment import ToolEnvironment
from trajgym.trainers.trl_episode import Episode
from trajgym.types import StopReason

__all__ = ["EpisodeReward"]

_ENDS = (StopReason.ANSWERED, StopReason.INVALID_CALLS, StopReason.MAX_TURNS, StopReason.EPISODE_TOKENS)


class EpisodeReward:
    """Lets each environment take the steps of its completion and returns what they were paid in sum.

    An episode in which our machinery failed gets no reward at all (``None``), so TRL leaves it out of its group. Where
    TRL passes ``log_metric``, the mean of each part of the reward, the number of turns and the shares of the reasons to
    stop are logged.

    Args:
        end_ids: Tokens that end a turn, ``[tokenizer.eos_token_id]`` for most models. A completion that ends otherwise
            was cut by its budget, and what it says is not taken for an answer.
    """

    __name__ = "episode_reward"

    def __init__(self, end_ids: Collection[int]) -> None:
        self.end_ids = frozenset(end_ids)

    def __call__(
        self,
        completions: Sequence[Completion],
        *,
        completion_ids: Sequence[Sequence[int]],
        environments: Sequence[Any],
        trainer_state: Any = None,
        log_extra: Callable[[str, list[str]], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Return the reward of each completion.

        Args:
            completions: TRL's messages.
            completion_ids: Their tokens.
            environments: The environment of each; another one than ours gets ``None``.
            trainer_state: TRL's, which says how much of the training is done.
            log_extra: Takes a column for TRL's table of completions.
            log_metric: Takes a metric.
            **columns: Not needed.

        Raises:
            RewardError: When a reward term fails.
        """
        done, total = getattr(trainer_state, "global_step", 0), getattr(trainer_state, "max_steps", 0)
        progress = min(1.0, done / total) if total > 0 else 0.0
        episodes = [e.episode if isinstance(e, ToolEnvironment) else None for e in environments]
        for episode, completion, ids in zip(episodes, completions, completion_ids, strict=True):
            if episode is not None:
                episode.finish(completion, ended=bool(ids) and ids[-1] in self.end_ids, progress=progress)
        if log_extra is not None:
            log_extra("step_rewards", [" ".join(f"{r:g}" for r in e.rewards) if e else "" for e in episodes])
        if log_metric is not None:
            for name, value in _metrics([e for e in episodes if e is not None]).items():
                log_metric(name, value)
        return [None if e is None or e.fault is not None else sum(e.rewards) for e in episodes]


def _metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return means over episodes."""
    valid = [e.steps for e in episodes if e.fault is None and e.steps]
    if not valid:
        return {"episode/faults": 1.0} if episodes else {}
    out = {"episode/faults": 1.0 - len(valid) / len(episodes)}
    out["episode/turns"] = sum(map(len, valid)) / len(valid)
    for reason in _ENDS:
        out[f"episode/{reason.value}"] = sum(steps[-1].stop_reason is reason for steps in valid) / len(valid)
    for name in valid[0][-1].reward_terms:
        out[f"reward_parts/{name}"] = sum(s.reward_terms[name] for steps in valid for s in steps) / len(valid)
    return out
