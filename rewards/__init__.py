"""Reward terms and rubrics: what a step is worth, and why.

What ``gym.make(..., reward=NAME)`` and ``get_reward_function(NAME)`` know, where ``acc`` is 1 for a right final answer
and 0 for any other:

==================  ====================================================================================================
``sparse``          ``acc`` at the end
``dense``           0.1 for each step with a new successful call, at most as many as the task needs; taken back at the
                    end unless the answer is right. Environments without tools take ``sparse`` instead
``hybrid``          ``sparse`` and 0.1 for the same steps, which here are kept
``process``         ``sparse`` and 0.5 times the share of the task's intermediate values that calls have computed, paid
                    as they are found and kept
``shaped``          ``sparse`` and 0.5 times the potential-based progress through the task's intermediate values
``tool_use``        ``sparse``, 0.1 for each use of a result, at most as many as the task needs and taken back like
                    those of ``dense``, −0.05 for each needless repeat of a call and −0.01 for each call, both down to
                    −0.2 in all
``accuracy``        ``acc``; the class is :class:`AccuracyReward`
``length_penalty``  ``acc·(1 − α·max(0, l − l_target))``: :class:`LengthPenaltyReward`
``step``            ``acc·(1 + β·s)``: :class:`StepReward`; environments know how their tasks are solved, so there ``s``
                    counts the steps that show a value on that way
``combined``        all three with a weight of 1: :class:`MathRewardFunction`
``math``            the same with weights 1, 0.5 and 0.3
``partial_credit``  an example of what not to train with: near misses pay
==================  ====================================================================================================

The terms that a mapping such as ``{"accuracy": 1.0, "call_cost": 0.01}`` can name, with a cap where they could be
farmed: ``accuracy``, ``strict_accuracy``, ``format``, ``length_penalty``, ``step``, ``tool_success``, ``call_valid``,
``call_ran``, ``milestone``, ``result_used``, ``needless_repeat``, ``call_cost``, ``length_cost``, ``progress``, and
``reward_model``, which needs the ``path`` of a trained one (:func:`~trajgym.rewards.learned.learned_reward`).
"""

from __future__ import annotations

import functools

from trajgym.rewards.answer import Reading, correct, equal, read, truth
from trajgym.rewards.answer_kinds import answer_kind, grade
from trajgym.rewards.catalogue import (
    REWARDS,
    TERMS,
    RewardLike,
    get_reward_function,
    get_rubric,
    register_reward_function,
    register_rubric,
    register_term,
)
from trajgym.rewards.compare import PairJudge
from trajgym.rewards.criteria import RewardCriteria, reward_criteria
from trajgym.rewards.expression import read_expression
from trajgym.rewards.functions import FunctionTerm, RewardTerm, Term, term
from trajgym.rewards.judge import Judge, RewardModel
from trajgym.rewards.learned import learned_reward, load_reward_model
from trajgym.rewards.limits import Capped, Gated, Settled
from trajgym.rewards.math_rewards import AccuracyReward, LengthPenaltyReward, MathRewardFunction, StepReward
from trajgym.rewards.partial_credit import partial_credit
from trajgym.rewards.rubric import Rubric, Weight
from trajgym.rewards.schedule import Schedule
from trajgym.rewards.shaping import Potential, Shaped, progress
from trajgym.rewards.symbolic import equal_expressions
from trajgym.rewards.terms import LengthPenalty, StepBonus, accuracy, format_kept, strict_accuracy
from trajgym.rewards.tool_use import (
    LengthCost,
    call_cost,
    call_ran,
    call_valid,
    milestone,
    needed_steps,
    needless_repeat,
    result_used,
    tool_success,
)

__all__ = [
    "REWARDS",
    "TERMS",
    "AccuracyReward",
    "Capped",
    "FunctionTerm",
    "Gated",
    "Judge",
    "LengthCost",
    "LengthPenalty",
    "LengthPenaltyReward",
    "MathRewardFunction",
    "PairJudge",
    "Potential",
    "Reading",
    "RewardCriteria",
    "RewardLike",
    "RewardModel",
    "RewardTerm",
    "Rubric",
    "Schedule",
    "Settled",
    "Shaped",
    "StepBonus",
    "StepReward",
    "Term",
    "Weight",
    "accuracy",
    "answer_kind",
    "call_cost",
    "call_ran",
    "call_valid",
    "correct",
    "equal",
    "equal_expressions",
    "format_kept",
    "get_reward_function",
    "get_rubric",
    "grade",
    "learned_reward",
    "load_reward_model",
    "milestone",
    "needed_steps",
    "needless_repeat",
    "partial_credit",
    "progress",
    "read",
    "read_expression",
    "register_reward_function",
    "register_rubric",
    "register_term",
    "result_used",
    "reward_criteria",
    "strict_accuracy",
    "term",
    "tool_success",
    "truth",
]

register_term("accuracy", lambda: accuracy)
register_term("strict_accuracy", lambda: strict_accuracy)
register_term("format", lambda: format_kept)
register_term("length_penalty", LengthPenalty)
register_term("step", StepBonus)
register_term("tool_success", lambda: tool_success)
register_term("call_valid", lambda: Capped(call_valid, most=needed_steps))
register_term("call_ran", lambda: Capped(call_ran, most=needed_steps))
register_term("milestone", lambda: milestone)
register_term("result_used", lambda: Capped(result_used, most=needed_steps))
register_term("needless_repeat", lambda least=-4.0: Capped(needless_repeat, least=least))
register_term("call_cost", lambda least=-20.0: Capped(call_cost, least=least))
register_term("length_cost", LengthCost)
# The trainer counts what lies behind a budget as nothing, so nothing may be left of the potential there either.
register_term("progress", lambda gamma=None: Shaped(progress, gamma, zero_when_truncated=True))

register_term("reward_model", learned_reward)

register_rubric("sparse", lambda: get_rubric({"accuracy": 1.0}))
register_rubric("dense", lambda: Rubric({"tool_success": (Settled(tool_success), 0.1)}))
register_rubric("hybrid", lambda: get_rubric({"accuracy": 1.0, "tool_success": 0.1}))
register_rubric("process", lambda: get_rubric({"accuracy": 1.0, "milestone": 0.5}))
register_rubric("shaped", lambda: get_rubric({"accuracy": 1.0, "progress": 0.5}))
register_rubric(
    "tool_use",
    lambda: Rubric(
        {
            **get_rubric({"accuracy": 1.0, "needless_repeat": 0.05, "call_cost": 0.01}),
            "result_used": (Settled(Capped(result_used, most=needed_steps)), 0.1),
        }
    ),
)
register_rubric("accuracy", AccuracyReward)
register_rubric("length_penalty", LengthPenaltyReward)
register_rubric("step", StepReward)
register_rubric("combined", MathRewardFunction)
register_rubric("math", functools.partial(MathRewardFunction, accuracy=1.0, length_penalty=0.5, step=0.3))
register_reward_function("partial_credit", partial_credit)
