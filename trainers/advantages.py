"""Estimators by name: the rewards of one group become one advantage per turn.

================  ================================================================================  ===============
name              credit of turn t of trajectory i                                                  unbiased for ∇J
================  ================================================================================  ===============
``trajectory``    the whole return, minus the others'                                               yes
``return_to_go``  what came after the turn, minus the same of the others at that turn               yes
``anchor``        what came after the turn, minus the same of the others in that state              yes
``vine``          reward and values from fresh rollouts before and behind the turn                  yes
``gae``           temporal differences over a value head, or over the group                         at λ = 1
``gigpo``         published: trajectory-level plus state-level, each normalised                     no
``grpo_process``  published: all step rewards normalised together, then summed                      no
``mt_grpo``       published: step rewards normalised turn by turn, then summed                      no
``rebn``          published: all returns-to-go normalised together                                  no
================  ================================================================================  ===============

The objective is ``J = E[Σ_t γ^t r_t]``. :func:`bind` fixes the options of one of them; :func:`estimator` adds another:

.. code-block:: python

    @estimator("centred", unbiased=True)
    def centred(rewards, *, gamma, centre=0.5):
        return [[gamma**t * (g - centre) for t, g in enumerate(returns(row, gamma))] for row in rewards]
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trajgym.errors import ConfigError, did_you_mean
from trajgym.trainers.advantages_base import (
    ESTIMATORS,
    Advantages,
    Estimator,
    Rewards,
    States,
    Values,
    estimator,
)
from trajgym.trainers.advantages_published import gigpo, grpo_process, mt_grpo, rebn
from trajgym.trainers.advantages_returns import return_to_go, returns, trajectory
from trajgym.trainers.advantages_states import anchor
from trajgym.trainers.advantages_values import gae, vine
from trajgym.trainers.scaling import scale

__all__ = [
    "ESTIMATORS",
    "Advantages",
    "BiasWarning",
    "BoundEstimator",
    "Estimator",
    "Rewards",
    "States",
    "Values",
    "anchor",
    "bind",
    "estimator",
    "gae",
    "gigpo",
    "grpo_process",
    "mt_grpo",
    "rebn",
    "return_to_go",
    "returns",
    "scale",
    "trajectory",
    "vine",
]


class BiasWarning(UserWarning):
    """The chosen estimator is not known to follow the gradient of the objective."""


@dataclass(frozen=True)
class BoundEstimator:
    """An estimator with its options.

    Args:
        estimator: Which.
        options: Its keyword arguments, gamma among them.
    """

    estimator: Estimator
    options: Mapping[str, Any]

    @property
    def needs(self) -> tuple[str, ...]:
        """Which of ``states`` and ``values`` it takes."""
        return self.estimator.needs

    def __call__(self, rewards: Rewards, *, states: States | None = None, values: Values | None = None) -> Advantages:
        """Return the advantages of a group; what the estimator does not take is left out.

        Raises:
            RewardError: For rewards that are not finite numbers, or a trajectory without turns.
            ConfigError: When something it needs is missing or does not fit, or the group is too small.
        """
        given = {"states": states, "values": values}
        wanted = {name: given[name] for name in self.needs if given[name] is not None}
        return self.estimator(rewards, **wanted, **self.options)


def bind(
    name: str, *, gamma: float, baseline: str | None = None, discount_weight: str = "exact", **options: Any
) -> BoundEstimator:
    """Fix the options of an estimator, and try them out.

    Warns with :class:`BiasWarning` when the estimator is not unbiased, unless its bias is an option away (``lam`` of
    ``gae``): that one was weighed by whoever chose the option.

    Args:
        name: Of a registered estimator.
        gamma: Discount per turn, in [0, 1].
        baseline: Its own default when None.
        discount_weight: ``"exact"`` or ``"dropped"``.
        options: What else it takes.

    Raises:
        UnknownNameError: For a name, or a value of an option, that does not exist.
        ConfigError: For an option that it does not have, or a value out of range.

    >>> bind("return_to_go", gamma=0.5, baseline="none")([[1.0, 2.0]])
    [[2.0, 1.0]]
    """
    chosen = ESTIMATORS[name]
    if baseline is not None:
        options["baseline"] = baseline
    if discount_weight != "exact":
        options["discount_weight"] = discount_weight
    for option in options:
        if option not in chosen.options:
            known = ", ".join(map(repr, sorted(chosen.options))) or "none"
            close = did_you_mean(option, chosen.options)
            raise ConfigError(f"Estimator {name!r} has no option {option!r}.{close} It has: {known}.")
    bound = BoundEstimator(chosen, {"gamma": gamma, **options})
    # A wrong value is found before anything expensive begins.
    bound([[0.0], [1.0]], states=[["start"], ["start"]], values=[[0.0, 0.0], [0.0, 0.0]])
    if not chosen.unbiased and not chosen.exact_at:
        warnings.warn(
            f"Estimator {name!r} is not known to follow the gradient of E[Σ γ^t r_t]; where the policy decides when to "
            'stop, credit can even get the wrong sign. Unbiased with the reward of every step: "return_to_go".',
            BiasWarning,
            stacklevel=2,
        )
    return bound
