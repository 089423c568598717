"""Each rule speaks where it should, with the numbers, and is silent on what is nearly the same but healthy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from trajgym.trainers.diagnose import RULES
from trajgym.trainers.diagnose_history import History
from trajgym.trainers.diagnose_rule import Finding, Rule, Severity

BY_NAME: dict[str, Rule] = {rule.name: rule for rules in RULES.values() for rule in rules}
FULL = {"model": "Qwen/Qwen3-0.6B", "use_lora": False}


def rows(count: int, **metrics: Any) -> list[dict[str, Any]]:
    """Updates 1 … ``count``; a metric is a constant, or a list whose last number is repeated to the end."""
    out = []
    for i in range(count):
        row: dict[str, Any] = {"update": i + 1}
        for name, value in metrics.items():
            row[name.replace("__", "/")] = value[min(i, len(value) - 1)] if isinstance(value, list) else value
        out.append(row)
    return out


def ramp(low: float, high: float, count: int) -> list[float]:
    return [low + (high - low) * i / (count - 1) for i in range(count)]


def noisy(level: float, count: int, size: float = 0.05) -> list[float]:
    """A level with alternating noise."""
    return [level + size * (-1) ** i for i in range(count)]


USEFUL = "efficiency/useful_token_share"


@dataclass
class Case:
    """What provokes a rule, what its evidence says, and what must not provoke it."""

    rule: str
    provokes: list[dict[str, Any]]
    says: list[str]
    silent: list[list[dict[str, Any]]]
    options: dict[str, Any] = field(default_factory=dict)
    severity: Severity | None = None


CASES = [
    Case("kl_explosion", rows(5, kl=0.62), ["0.62", "0.5"], [rows(5, kl=0.5), rows(5, kl=[0.1, 0.1, 0.1, 0.1, 0.8])]),
    Case("kl_watch", rows(5, kl=0.3), ["0.3"], [rows(5, kl=0.1), rows(5, kl=0.05), rows(5, kl=0.7)]),
    Case("kl_frozen", rows(12, kl=0.0004), ["0.0004", "12 updates"],
         [rows(12, kl=0.001), rows(9, kl=0.0), rows(12, kl=0.0, learning_rate=ramp(1e-7, 1e-6, 12)), rows(40)]),
    Case("reward_flat", rows(40, reward=noisy(0.3, 40)), ["0.3", "40", "chance"],
         [rows(29, reward=0.3), rows(40, reward=ramp(0.3, 0.5, 40)), rows(40, reward=0.9, success=0.97),
          rows(40, reward=[*ramp(0.1, 0.6, 20), 0.6])]),
    Case("reward_falls", rows(40, reward=[*ramp(0.2, 0.8, 25), *ramp(0.8, 0.3, 15)]), ["0.7", "fallen"],
         [rows(40, reward=noisy(0.5, 40, 0.3)), rows(40, reward=[*ramp(0.2, 0.8, 25), 0.75]),
          rows(9, reward=[1.0, 0.0])]),
    Case("grad_explosion", rows(4, grad_norm=250.0), ["250", "100"], [rows(4, grad_norm=99.0), rows(2, grad_norm=1e6)]),
    Case("grad_vanishing", rows(4, grad_norm=0.002, no_signal_share=0.5), ["0.002", "0.01"],
         [rows(4, grad_norm=0.01), rows(4, grad_norm=0.0, no_signal_share=1.0), rows(4, grad_norm=0.0, success=1.0)]),
    Case("entropy_collapse", rows(12, entropy=[0.9] * 5 + [0.04], reward=0.5), ["0.9", "0.04"],
         [rows(12, entropy=[0.9] * 5 + [0.2], reward=0.5), rows(12, entropy=0.04, reward=0.5),
          rows(12, entropy=[0.9] * 5 + [0.04], loss=1.0),
          rows(12, entropy=[0.9] * 5 + [0.0], reward=0.5)]),
    Case("entropy_rises", rows(12, entropy=[0.5] * 5 + [1.8], reward=0.5), ["0.5", "1.8"],
         [rows(12, entropy=[0.5] * 5 + [0.9], reward=0.5), rows(12, entropy=[0.1] * 5 + [0.5], reward=0.5)]),
    Case("advantages_zero", rows(3, no_signal_share=1.0), ["3 updates", "zero"],
         [rows(2, no_signal_share=1.0), rows(3, no_signal_share=[1.0, 1.0, 0.99])]),
    Case("no_signal", rows(3, no_signal_share=0.8, success=0.1), ["80%", "10%"],
         [rows(3, no_signal_share=0.69), rows(3, no_signal_share=1.0)]),
    Case("value_model", rows(25, value_explained=-0.2), ["25", "-20%"],
         [rows(25, value_explained=0.1), rows(19, value_explained=-0.2), rows(25)]),
    Case("clipping", rows(3, clip_share=0.4), ["40%"], [rows(3, clip_share=0.3)]),
    Case("reward_hacking", rows(40, reward=ramp(0.2, 0.9, 40), success=ramp(0.5, 0.2, 40)), ["0.2", "fell", "%"],
         [rows(40, reward=ramp(0.2, 0.9, 40), success=0.5),
          rows(40, reward=ramp(0.9, 0.2, 40), success=ramp(0.5, 0.2, 40)),
          rows(40, reward=ramp(0.2, 0.9, 40))]),
    Case("format_lost", rows(40, success=ramp(0.3, 0.6, 40), format_share=ramp(0.9, 0.5, 40)), ["format_share", "0.8"],
         [rows(40, success=ramp(0.3, 0.6, 40), format_share=0.9),
          rows(40, success=0.3, format_share=ramp(0.9, 0.5, 40)),
          rows(40, success=ramp(0.3, 0.6, 40)), rows(40, format_share=ramp(0.9, 0.5, 40))]),
    Case("length_hacking", rows(40, tokens_per_trajectory=ramp(100, 300, 40), success=0.4), ["times as many", "0.4"],
         [rows(40, tokens_per_trajectory=ramp(100, 300, 40), success=ramp(0.4, 0.8, 40)),
          rows(40, tokens_per_trajectory=ramp(100, 130, 40), success=0.4),
          rows(40, tokens_per_trajectory=ramp(100, 300, 40))]),
    Case("tools_die", rows(20, calls=[2.0] * 10 + [0.1]), ["2", "0.1"],
         [rows(20, calls=[2.0] * 10 + [1.0]), rows(20, calls=0.0), rows(20, calls=[0.1] * 10 + [0.0])]),
    Case("dominance", rows(3, reward_variance__accuracy=0.95, reward_variance__step=0.05), ["95%", "'accuracy'"],
         [rows(3, reward_variance__accuracy=0.85, reward_variance__step=0.15), rows(3, reward_variance__accuracy=1.0)]),
    Case("not_a_number", rows(1, loss=math.nan), ["loss", "update 1"],
         [rows(1, loss=0.0), rows(1, time__update=math.inf)]),
    Case("faults", rows(1, fault_share=0.2, faults__ToolTimeout=4.0), ["20%", "ToolTimeout 4"],
         [rows(1, fault_share=0.05), rows(1)]),
    Case("sampler_gap", rows(3, sampler_gap=0.2), ["0.2 nats"], [rows(3, sampler_gap=0.04)]),
    Case("padding", rows(3, **{USEFUL: 0.02}), ["2%"], [rows(3, **{USEFUL: 0.12})]),
    Case("slowdown", rows(9, time__tokens_per_second=[1000.0] * 5 + [400.0]), ["400", "1,000"],
         [rows(9, time__tokens_per_second=[1000.0] * 5 + [600.0])]),
    Case("loss_flat", rows(40, loss=noisy(2.0, 40)), ["2", "step 40"],
         [rows(40, loss=ramp(2.0, 1.0, 40)), rows(29, loss=2.0), rows(40, loss=2.0, reward=0.5)]),
    Case("loss_rises", rows(40, loss=[*ramp(2.0, 1.0, 20), *ramp(1.0, 1.8, 20)]), ["1.", "step"],
         [rows(40, loss=ramp(2.0, 1.0, 40)), rows(40, loss=[*ramp(2.0, 1.0, 20), *ramp(1.0, 1.8, 20)], reward=0.5)]),
    Case("overfit", rows(9, loss=ramp(2.0, 0.5, 9), eval_loss=[1.5, 1.2, 1.3, 1.5]), ["1.2", "1.5"],
         [rows(9, loss=ramp(2.0, 0.5, 9), eval_loss=[1.5, 1.2, 1.21]),
          rows(9, loss=ramp(1.0, 2.0, 9), eval_loss=[1.5, 1.2, 1.5])]),
    *(
        Case(rule, rows(6, **{metric: [0.0] * 3 + [0.2]}), ["20%"],
             [rows(6, **{metric: [0.0] * 3 + [0.09]}), rows(6, **{metric: [0.3] * 3 + [0.45]}),
              rows(2, **{metric: 0.9})])
        for rule, metric in {
            "unreadable_answers": "unreadable_share", "call_errors": "call_error_share", "cut_turns": "cut_turn_share",
            "unknown_tools": "unknown_tool_share", "tool_errors": "tool_error_share", "truncation": "truncated_share",
        }.items()
    ),
]  # fmt: skip


def found(case: Case, metrics: list[dict[str, Any]], **options: Any) -> Finding | None:
    return BY_NAME[case.rule](History(metrics), case.options | options)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_it_speaks_with_numbers(case: Case) -> None:
    finding = found(case, case.provokes)
    assert finding is not None
    assert [words for words in case.says if words not in finding.evidence] == []
    assert finding.severity is (case.severity or BY_NAME[case.rule].severity)
    assert finding.cause
    assert finding.remedy
    assert finding.first == finding.last == len(case.provokes)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_it_is_silent_otherwise(case: Case) -> None:
    assert [i for i, metrics in enumerate(case.silent) if found(case, metrics) is not None] == []


@pytest.mark.parametrize(
    ("rule", "wrong", "right"),
    [
        ("greedy_sampling", {"temperature": 0}, {"temperature": 0.7}),
        ("temperature", {"temperature": 0.5}, {"temperature": 0.7}),
        ("temperature", {"temperature": 1.3}, {"temperature": 1.0}),
        ("rate_large", FULL | {"learning_rate": 5e-5}, FULL | {"learning_rate": 1e-5}),
        ("rate_large", FULL | {"learning_rate": 5e-5}, {"model": "tiny", "learning_rate": 3e-4}),
        ("rate_small", {"learning_rate": 1e-7}, {"learning_rate": 1e-6}),
        ("kl_coef_large", {"kl_coef": 0.5}, {"kl_coef": 0.1}),
        ("kl_coef_small", {"kl_coef": 0.01}, {"kl_coef": 0.05}),
        ("kl_coef_small", {"kl_coef": 0.0}, {"kl_coef": 0.0, "model": "tiny"}),
        ("small_groups", {"num_generations": 2}, {"num_generations": 4}),
        ("small_groups", {"num_generations": 2}, {"num_generations": 1, "algorithm": "ppo"}),
        ("short_turns", {"max_turn_tokens": 100}, {"max_turn_tokens": 256}),
    ],
)
def test_advice_on_options(rule: str, wrong: dict[str, Any], right: dict[str, Any]) -> None:
    finding = BY_NAME[rule](History(), wrong)
    assert finding is not None
    assert finding.first is finding.last is None
    value = next(v for k, v in wrong.items() if k not in FULL)
    assert f"{value:g}" in finding.evidence
    assert BY_NAME[rule](History(), right) is None
    assert BY_NAME[rule](History(), {}) is None


def test_adapters_bear_more() -> None:
    def severity(**options: Any) -> Severity | None:
        finding = BY_NAME["rate_large"](History(), FULL | options)
        return finding and finding.severity

    assert severity(learning_rate=5e-5) is Severity.WARNING
    assert severity(learning_rate=5e-5, use_lora=True) is Severity.NOTE
    assert severity(learning_rate=5e-4, use_lora=True) is Severity.WARNING
    assert severity(learning_rate=1.5e-5) is Severity.NOTE


def test_every_rule_has_a_case() -> None:
    advice = {rule.name for rule in RULES["Options, before the run"]}
    tested = {case.rule for case in CASES} | advice | {"out_of_memory"}  # that one is told by an error alone
    assert tested == set(BY_NAME)
    assert len(BY_NAME) == sum(map(len, RULES.values()))


@pytest.mark.parametrize(
    ("rule", "metrics", "severity"),
    [
        ("advantages_zero", rows(4, no_signal_share=1.0, success=1.0), Severity.NOTE),
        ("no_signal", rows(4, no_signal_share=0.8, success=0.97), Severity.NOTE),
        ("entropy_collapse", rows(12, entropy=[0.9] * 5 + [0.01], reward=1.0, success=1.0), Severity.NOTE),
        ("entropy_collapse", rows(40, entropy=[0.9] * 5 + [0.01], reward=ramp(0.1, 0.9, 40)), Severity.NOTE),
        (
            "entropy_collapse",
            rows(40, entropy=[0.9] * 5 + [0.01], reward=ramp(0.1, 0.9, 40), no_signal_share=0.8),
            Severity.WARNING,
        ),
        ("tools_die", rows(30, calls=[2.0] * 10 + [0.0], success=ramp(0.2, 0.9, 30)), Severity.NOTE),
        ("kl_frozen", rows(40, kl=0.0005, reward=ramp(0.1, 0.9, 40)), Severity.NOTE),
        ("faults", rows(1, fault_share=0.6), Severity.SERIOUS),
    ],
)
def test_it_matters_less_or_more(rule: str, metrics: list[dict[str, Any]], severity: Severity) -> None:
    finding = BY_NAME[rule](History(metrics), {})
    assert finding is not None
    assert finding.severity is severity


def test_the_limit_for_faults_is_an_option() -> None:
    failing = History(rows(1, fault_share=0.2))
    assert BY_NAME["faults"](failing, {"fault_alarm": 0.2}) is None
    assert BY_NAME["faults"](failing, {"fault_alarm": 0.1}) is not None
    assert BY_NAME["faults"](History(rows(1, fault_share=1.0)), {"fault_alarm": 1.0}) is None


def test_where_weights_of_the_reward_move_success_counts() -> None:
    moving = {"reward_schedule": {"step": [[0, 1.0], [1, 0.0]]}}
    falling = History(rows(40, reward=ramp(1.0, 0.2, 40), success=ramp(0.1, 0.8, 40)))
    assert BY_NAME["reward_falls"](falling, {}) is not None
    assert BY_NAME["reward_falls"](falling, moving) is None
    stuck = BY_NAME["reward_flat"](History(rows(40, reward=ramp(0.2, 1.0, 40), success=0.1)), moving)
    assert stuck is not None
    assert "success" in stuck.evidence


def test_a_rising_reward_is_never_flat_though_it_is_noisy() -> None:
    values = [value + 0.02 * i for i, value in enumerate(noisy(0.2, 40))]
    assert BY_NAME["reward_flat"](History(rows(40, reward=values)), {}) is None


def test_a_gap_that_is_corrected_is_told_of_where_it_is_large() -> None:
    rule, corrected = BY_NAME["sampler_gap"], {"sampler_correction": True}
    assert rule(History(rows(3, sampler_gap=0.4)), corrected) is None
    assert rule(History(rows(3, sampler_gap=0.6)), corrected) is not None
