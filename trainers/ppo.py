"""PPO on trajectories: the loop, loss and masks of GRPO, with a learned value in the place of the group.

``A_t = Σ_k (γλ)^{k−t} δ_k`` with ``δ_k = r_k + γ·V(s_{k+1}) − V(s_k)``, turn by turn. With ``value_levels: bilevel``
a second λ spreads each turn's advantage over its tokens.

Source: PPO, arXiv 1707.06347; GAE, arXiv 1506.02438; bi-level, arXiv 2510.16907.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from trajgym.trainers.advantages import Advantages
from trajgym.trainers.advantages_values import gae
from trajgym.trainers.critic import Critic
from trajgym.trainers.efficiency import Passes
from trajgym.trainers.grpo import GRPOTrainer
from trajgym.trainers.interrupt import Interrupt
from trajgym.trainers.player import Played
from trajgym.trainers.token_pass import PerToken
from trajgym.trainers.value_loss import bilevel_gae
from trajgym.types import Group

__all__ = ["PPOTrainer"]

T = TypeVar("T")


@dataclass(frozen=True)
class _Judged:
    """What the critic says of a batch, one entry per group or per trajectory."""

    advantages: list[Any]  # per group: one number per turn, or one per token of each turn
    values: PerToken
    targets: PerToken
    weights: PerToken  # which tokens' states the critic learns from


class PPOTrainer(GRPOTrainer):
    """A run of :class:`trajgym.trainers.grpo.GRPOTrainer` with a critic.

    Args:
        config: All options, with ``algorithm: ppo``.
        name: Begins the name of the run folder when ``config.name`` is unset.
    """

    critic: Critic

    def prepare(self, model: Any) -> None:
        """Copy the value model from the policy before that has moved."""
        self.critic = Critic(model, self.config, ranks=self.ranks, device=self.device)

    def improve(self, played: Played, interrupt: Interrupt) -> tuple[dict[str, float], list[Any]]:
        """Credit a batch, then take the steps of the policy and of the critic; see :class:`GRPOTrainer`."""
        groups = played.groups
        judged = self._judge(groups)
        learned = {"groups": float(len(groups))}
        if self.update >= self.config.value_warmup:
            learned = self.learn(groups, judged.advantages, interrupt)
        else:
            self.ranks.together(interrupt.check)
        self.learner.clean = False
        everyone = [t for group in groups for t in group.trajectories]
        progress = (self.update + 0.5) / self.schedule.total
        with self.watch("train"):
            learned |= self.critic.learn(everyone, judged.targets, judged.values, judged.weights, progress)
        return learned, judged.advantages

    def credit(self, groups: Sequence[Group], values: Mapping[int, list[float]] | None = None) -> list[Advantages]:
        """Return the advantages of every group, one per turn, or one per token of each turn, by the critic's values."""
        return self._judge(groups).advantages

    def passes(self) -> Passes:
        """Return how often an update goes through what it learns from."""
        train = 0 if self.update < self.config.value_warmup else self.config.inner_epochs
        return replace(super().passes(), train=train, value=1, value_train=self.config.value_epochs)

    def tokens_processed(self) -> int:
        """Return the tokens that have gone through models on this rank so far."""
        return super().tokens_processed() + self.critic.processed

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the policy's weights that a resumed run must know."""
        return super().state_dict() | {"critic": self.critic.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        super().load_state_dict(state)
        self.critic.load_state_dict(state["critic"])

    def _judge(self, groups: Sequence[Group]) -> _Judged:
        config = self.config
        with self.watch("logprobs"):
            tokens = self.critic.token_values([t for group in groups for t in group.trajectories])
        # V of a turn is that of the state before its first token; nothing follows the last turn, also where it was cut.
        values = [[*(turn[0] if turn else 0.0 for turn in turns), 0.0] for turns in tokens]
        kl = self.kl_of_turns(groups)
        grouped = self.crediting.rewards(groups, kl)
        rewards = [row for group in grouped for row in group]
        if config.value_levels == "turn":
            plain = gae(
                rewards, gamma=config.gamma, values=values, discount_weight="dropped", **config.estimator_options
            )
            targets = [
                [[a + v] * len(turn) for a, v, turn in zip(row, own, turns, strict=False)]
                for row, own, turns in zip(plain, values, tokens, strict=True)
            ]
            weights = [[[float(k == 0) for k in range(len(turn))] for turn in turns] for turns in tokens]
            return _Judged(self.crediting(groups, values=_by_group(values, groups), kl=kl), tokens, targets, weights)
        spread = [self._spread(rewards[i], values[i], tokens[i], config.discount_weight) for i in range(len(tokens))]
        targets = [
            [
                [a + v for a, v in zip(advantages, turn, strict=True)]
                for advantages, turn in zip(self._spread(rewards[i], values[i], turns, "dropped"), turns, strict=True)
            ]
            for i, turns in enumerate(tokens)
        ]
        weights = [[[1.0] * len(turn) for turn in turns] for turns in tokens]
        return _Judged(self._rescaled(_by_group(spread, groups), grouped), tokens, targets, weights)

    def _spread(
        self, rewards: Sequence[float], values: Sequence[float], tokens: list[list[float]], discount_weight: str
    ) -> list[list[float]]:
        """Return the advantage of every token of a trajectory."""
        return bilevel_gae(
            [len(turn) for turn in tokens],
            rewards,
            values,
            [v for turn in tokens for v in turn],
            self.config.gamma,
            float(self.config.estimator_options.get("lam", 0.95)),
            self.config.token_lam,
            discount_weight=discount_weight,
        )

    def _rescaled(self, spread: list[Any], rewards: Any) -> list[Any]:
        """Divide by the spread of the batch, token by token."""
        flat = [[[a for turn in row for a in turn] for row in group] for group in spread]
        numbers = (a for group in self.crediting.rescale(flat, rewards) for row in group for a in row)
        return [[[[next(numbers) for _ in turn] for turn in row] for row in group] for group in spread]


def _by_group(items: Sequence[T], groups: Sequence[Group]) -> list[list[T]]:
    """Deal what stands trajectory by trajectory to the groups."""
    left: Iterator[T] = iter(items)
    return [[next(left) for _ in group.trajectories] for group in groups]
