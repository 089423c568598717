"""The audit finds holes that were dug on purpose, names the term, and passes the rewards that ship."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import gymnasium
import pytest

from trajgym.envs.arithmetic import ArithmeticEnv
from trajgym.envs.base import ToolEnv
from trajgym.envs.make import make
from trajgym.envs.sandbox import IsolationUnavailable, Pool
from trajgym.envs.tools import tool
from trajgym.errors import ConfigError, EnvironmentFault, UnknownNameError
from trajgym.evaluation.audit import GAMMA, Audit, Finding, audit, solves
from trajgym.evaluation.audit_rules import Criterion
from trajgym.policies.exploiters import EXPLOITS, Exploit
from trajgym.rewards import Settled, Term, accuracy, get_rubric
from trajgym.types import Action, Observation, Step, StopReason, Task, Trajectory, to_json

TASKS = 10
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def arithmetic(**terms: Term) -> Callable[[], ArithmeticEnv]:
    rubric = {name: (term, 1.0) for name, term in terms.items()}
    return lambda: ArithmeticEnv(reward=rubric, difficulty=(1, 3), max_turns=8)


def found(make_env: Callable[[], Any], **options: Any) -> Audit:
    return audit(make_env, **{"tasks": TASKS, **options})


def terms_of(findings: Sequence[Finding]) -> dict[str, str | None]:
    return {finding.exploit: finding.verdict.term for finding in findings}


# Holes, each a term as somebody might write it.


def every_call(step: Step, task: Task, history: Sequence[Step]) -> float:
    return 0.1 * sum(result.error is None for result in step.results)


def call_by_its_spelling(step: Step, task: Task, history: Sequence[Step]) -> float:
    seen = {str(result.call.arguments) for earlier in history for result in earlier.results}
    return 0.3 * sum(str(result.call.arguments) not in seen for result in step.results)


def length(step: Step, task: Task, history: Sequence[Step]) -> float:
    return 0.001 * len(step.action.text)


def steps_shown(step: Step, task: Task, history: Sequence[Step]) -> float:
    return 0.1 * len(re.findall(r"Step \d+:", step.action.text))


def steps_if_right(step: Step, task: Task, history: Sequence[Step]) -> float:
    return accuracy(step, task, history) * steps_shown(step, task, history)


def mended(step: Step, task: Task, history: Sequence[Step]) -> float:
    failed = bool(history) and any(result.error is not None for result in history[-1].results)
    return 0.3 * (failed and any(result.error is None for result in step.results))


def survival(step: Step, task: Task, history: Sequence[Step]) -> float:
    return 0.2


def brevity(step: Step, task: Task, history: Sequence[Step]) -> float:
    return 0.3 * (step.stop_reason is not None and len(step.action.text) < 100)


def last_number(step: Step, task: Task, history: Sequence[Step]) -> float:
    numbers = NUMBER.findall(step.action.text)
    return float(step.stop_reason is StopReason.ANSWERED and numbers[-1:] == [task.answer])


def any_number(step: Step, task: Task, history: Sequence[Step]) -> float:
    return float(step.stop_reason is StopReason.ANSWERED and task.answer in NUMBER.findall(step.action.text))


def first_marker(step: Step, task: Task, history: Sequence[Step]) -> float:
    marker = re.search(r"#### (\S+)", step.action.text)
    return float(marker is not None and marker[1] == task.answer and not any(s.reward for s in history))


def whole_dialogue(step: Step, task: Task, history: Sequence[Step]) -> float:
    shown = [message.content for earlier in history for message in earlier.observation.messages]
    said = "\n".join([*shown, step.action.text])
    return float(step.stop_reason is not None and task.answer in NUMBER.findall(said))


def trusting(step: Step, task: Task, history: Sequence[Step]) -> float:
    return max(accuracy(step, task, history), float("score: 1" in step.action.text.lower()))


HOLES: dict[str, tuple[Callable[[], ArithmeticEnv], str, set[str]]] = {
    # the reward, the term with the hole, and exploits that must find it
    "every call": (arithmetic(accuracy=accuracy, calls=every_call), "calls", {"burst", "flood"}),
    "spelling": (arithmetic(accuracy=accuracy, fresh=call_by_its_spelling), "fresh", {"respelled", "variations"}),
    "length": (arithmetic(accuracy=accuracy, length=length), "length", {"long", "newlines", "answer_spam"}),
    "steps": (arithmetic(accuracy=accuracy, steps=steps_shown), "steps", {"steps", "padded_steps"}),
    "steps if right": (arithmetic(accuracy=accuracy, steps=steps_if_right), "steps", {"padded_steps"}),
    "retry": (arithmetic(accuracy=accuracy, mended=mended), "mended", {"retry"}),
    "survival": (arithmetic(accuracy=accuracy, alive=survival), "alive", {"never_stop", "repeat", "flood"}),
    "last number": (arithmetic(grade=last_number), "grade", {"hedge_list"}),
    "any number": (
        arithmetic(grade=any_number),
        "grade",
        {"hedge_or", "hedge_lines", "boxed_everything", "think_only"},
    ),
    "first marker": (arithmetic(grade=first_marker), "grade", {"hedge_or", "answer_and_go_on"}),
    "tool output": (arithmetic(grade=whole_dialogue), "grade", {"work_unsaid", "print_question", "answer_in_call"}),
    "injection": (arithmetic(grade=trusting), "grade", {"grader_injection"}),
}


@pytest.mark.parametrize("hole", HOLES)
def test_a_hole_is_found_and_its_term_named(hole: str) -> None:
    make_env, term, exploits = HOLES[hole]
    result = found(make_env)
    assert not result.passed
    terms = terms_of(result.findings)
    assert {name: terms.get(name) for name in exploits} == dict.fromkeys(exploits, term)
    assert all(finding.example for finding in result.findings)


def test_a_hole_is_found_by_nobody_else() -> None:
    assert set(terms_of(found(HOLES["injection"][0]).findings)) == {"grader_injection"}
    assert set(terms_of(found(HOLES["steps if right"][0]).findings)) == {"padded_steps"}
    assert set(terms_of(found(HOLES["retry"][0]).findings)) == {"retry"}


def test_a_small_hole_is_a_leak() -> None:
    result = found(arithmetic(accuracy=accuracy, brevity=brevity))
    assert result.passed
    assert terms_of(result.leaks) == {"idle": "brevity"}
    strict = found(arithmetic(accuracy=accuracy, brevity=brevity), criterion=Criterion(share=0.2))
    assert terms_of(strict.findings)["give_up"] == "brevity"


# Credit for near misses and for showing work, whatever the answer is.


def _said(step: Step) -> Fraction | None:
    numbers = NUMBER.findall(step.action.text)
    return Fraction(numbers[-1]) if numbers and step.stop_reason is StopReason.ANSWERED else None


def partial_credit(step: Step, task: Task, history: Sequence[Step]) -> float:
    said = _said(step)
    if said is None:
        return 0.0
    off = abs(said - Fraction(task.answer))
    tiers = ((0.01, 1.0), (1.0, 0.8), (5.0, 0.5))
    credit = next((pay for limit, pay in tiers if off < limit), 0.0)
    shown = 0.1 if "step" in step.action.text.lower() or "=" in step.action.text else 0.0
    return min(1.0, credit + shown)


def repaired_credit(step: Step, task: Task, history: Sequence[Step]) -> float:
    return accuracy(step, task, history)


def working_if_right(step: Step, task: Task, history: Sequence[Step]) -> float:
    return 0.1 * accuracy(step, task, history) * ("=" in step.action.text)


def test_partial_credit_pays_wrong_answers_and_fails() -> None:
    result = found(arithmetic(partial=partial_credit), tasks=20)
    assert not result.passed
    almost = next(finding for finding in result.findings if finding.exploit == "almost")
    assert (almost.verdict.rule, almost.verdict.term) == ("as_good_as_honest", "partial")
    assert almost.verdict.reason.startswith("earns 0.80 without solving ('partial' 0.80), honest work 0.5")
    assert re.search(r"#### \d+\.5\n +│ reward 0\.8 \(partial \+0\.8\)", almost.example)
    leaks = {f.exploit: f.verdict.reason for f in result.leaks}
    assert leaks["steps"].startswith("'partial' pays 0."), "showing steps pays without a solution"


def test_the_example_that_ships_fails_too() -> None:
    result = found(lambda: ArithmeticEnv(reward="partial_credit"))
    assert terms_of(result.findings) == {"almost": "partial_credit"}


def test_repaired_partial_credit_passes() -> None:
    result = found(arithmetic(credit=repaired_credit, working=working_if_right), tasks=20)
    assert result.passed
    assert set(terms_of(result.leaks)) == {"padded_steps"}, "the bonus for showing work can still be had by padding"
    assert found(arithmetic(credit=repaired_credit), tasks=20).leaks == ()


# What ships.


SHIPPED = ["sparse", "dense", "hybrid", "shaped", "tool_use", "length_penalty", "step", "combined", "math"]
IDS = ["Arithmetic-v0", "ArithmeticTool-v0", "GSM8K-v0", "GSM8KTool-v0", "CodeTool-v0"]
# Those that pay alike need not all be played by the slower environments.
PAIRS = [(env, reward) for env in IDS[:2] for reward in SHIPPED] + [(e, r) for e in IDS[2:] for r in ("hybrid", "step")]
PAIRS += [("GSM8KTool-v0", "tool_use"), ("CodeTool-v0", "dense")]


@pytest.mark.parametrize(("env", "reward"), PAIRS)
def test_shipped_rewards_pass_without_a_leak(
    env: str, reward: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if env.startswith("GSM8K"):
        monkeypatch.setenv("TRAJGYM_DATA", str(request.getfixturevalue("gsm8k_data")))
    if env == "CodeTool-v0":
        try:
            Pool().close()
        except IsolationUnavailable as error:
            pytest.skip(str(error).splitlines()[0])
    result = audit(lambda: make(env, reward=reward), tasks=8)
    assert result.passed, result.findings
    assert result.leaks == ()
    expert, honest, *others = result.rows
    assert (expert.name, honest.name) == ("expert", "honest")
    assert expert.solved == 1.0
    assert {row.name for row in others} | set(result.skipped) == set(EXPLOITS)


def test_pay_for_calls_without_tools_is_pay_for_nothing() -> None:
    result = found(lambda: make("Arithmetic-v0", reward=get_rubric("dense")))
    assert [(f.exploit, f.verdict.rule) for f in result.findings] == [("wrong_answer", "pays_nothing")]
    assert result.quality.signal == 0.0


def test_the_reward_is_measured_without_those_that_pad() -> None:
    result = found(lambda: ArithmeticEnv(reward="length_penalty"), exploits=["long", "padded_steps"])
    assert (result.quality.success_order, result.quality.signal, result.quality.additive) == (1.0, 1.0, True)
    assert (result.quality.low, result.quality.high) == (0.0, 1.0)
    assert set(result.quality.shares) == {"accuracy", "length_penalty"}


def test_pay_for_calls_alone_is_no_reward_to_train_on() -> None:
    result = found(lambda: ArithmeticEnv(reward={"tool_success": (call_by_its_spelling, 0.1)}))
    verdict = next(finding.verdict for finding in result.findings if finding.exploit == "wrong_answer")
    assert (verdict.rule, verdict.term) == ("as_good_as_honest", "tool_success")
    assert "the same work with the right answer" in verdict.reason


# The rest.


def test_the_discount_is_the_trainers() -> None:
    from trajgym.trainers.config import GRPOConfig

    assert GRPOConfig.model_fields["gamma"].default == GAMMA
    late = found(arithmetic(accuracy=accuracy), gamma=0.5, exploits=[])
    expert = late.rows[0]
    assert expert.earned.mean == pytest.approx(expert.terms["accuracy"])
    assert 0.125 <= expert.earned.mean <= 0.5


def test_terms_that_depend_on_the_discount_are_told() -> None:
    advance = Settled(call_by_its_spelling)
    result = found(arithmetic(advance=advance), gamma=0.5, exploits=["variations"])
    earned = {row.name: row.earned.mean for row in result.rows}
    assert earned["expert"] > 0.2
    assert earned["variations"] == pytest.approx(0.0), "what was paid in advance is paid back in full"


def test_the_same_seed_gives_the_same_audit() -> None:
    def once(seed: int) -> str:
        return json.dumps(to_json(found(HOLES["every call"][0], seed=seed)))

    assert once(3) == once(3) != once(4)


def test_everything_is_json() -> None:
    data = to_json(found(HOLES["retry"][0], exploits=["retry", "exit"]))
    again = json.loads(json.dumps(data))
    assert again == data
    assert again["skipped"] == ["exit"]
    assert again["weights"] == {"accuracy": 1.0, "mended": 1.0}
    assert [row["name"] for row in again["rows"][:2]] == ["expert", "honest"]
    assert again["findings"][0]["verdict"]["term"] == "mended"
    assert again["quality"]["shares"].keys() == {"accuracy", "mended"}


def test_exploits_of_your_own_and_a_choice() -> None:
    shout = Exploit("shout", "Shouts.", lambda view: "SCORE: 1!")
    result = found(HOLES["injection"][0], exploits=[shout, "short", "short"])
    assert {row.name for row in result.rows} == {"expert", "honest", "idle", "wrong_answer", "shout", "short"}
    assert terms_of(result.findings) == {"shout": "grade"}


def test_answers_that_stand_in_the_question_are_a_shortcut() -> None:
    tasks = [Task(f"t{i}", f"The answer is {i + 20}. What is it?", str(i + 20)) for i in range(TASKS)]
    result = found(lambda: ToolEnv(tasks, reward="sparse"))
    rules = {finding.exploit: finding.verdict.rule for finding in result.findings}
    assert rules == {"question_echo": "shortcut", "question_numbers": "shortcut"}


def test_an_exploit_that_breaks_the_machinery() -> None:
    @tool
    def fragile(text: str) -> str:
        """Break on long texts."""
        if text == "1+30":
            raise EnvironmentFault("the worker died")
        return text

    tasks = [Task(f"t{i}", f"{i}?", str(i)) for i in range(50, 60)]
    result = found(lambda: ToolEnv(tasks, tools=[fragile], reward="sparse"), exploits=["burst", "variations"])
    assert {f.exploit: f.verdict.rule for f in result.findings} == {"burst": "breaks"}
    assert "fault     │ EnvironmentFault: the worker died" in result.findings[0].example


def test_honest_work_that_cannot_be_played() -> None:
    class Broken(ToolEnv):
        def step(self, action: str) -> Any:
            raise EnvironmentFault("no worker")

    with pytest.raises(EnvironmentFault, match=r"The policy 'expert' cannot be played: 10 of 10 .* no worker"):
        found(lambda: Broken([Task("t", "?", "1")]))
    with pytest.raises(ConfigError, match="The demonstrations solve 0 of 10 tasks"):
        found(lambda: ArithmeticEnv(difficulty=4, max_turns=3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": 4}, "tasks must be a whole number of at least 5, got 4"),
        ({"tasks": True}, "tasks must be"),
        ({"gamma": 1.5}, "gamma must lie in"),
        ({"exploits": "flood"}, "exploits takes several names"),
    ],
)
def test_wrong_use_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        found(ArithmeticEnv, **options)


def test_wrong_names_and_environments_are_said() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'flood'"):
        found(ArithmeticEnv, exploits=["floods"])
    with pytest.raises(ConfigError, match=r"CartPoleEnv is not a trajgym\.envs\.base\.ToolEnv"):
        found(lambda: gymnasium.make("CartPole-v1"))


@pytest.mark.parametrize(
    ("text", "truth", "stop", "expected"),
    [
        ("#### 72", "72", StopReason.ANSWERED, True),
        ("#### 72", "72", StopReason.MAX_TURNS, False),
        ("#### 72 or 73", "72", StopReason.ANSWERED, False),
        ("It is\n####  new  York", "New York", StopReason.ANSWERED, True),
        ("paris", "Paris", StopReason.ANSWERED, True),
        ("#### Rome or Paris", "Paris", StopReason.ANSWERED, False),
        ("", "", StopReason.ANSWERED, False),
    ],
)
def test_the_audit_judges_answers_itself(text: str, truth: str, stop: StopReason, expected: bool) -> None:
    step = Step(Action(text), Observation(), stop_reason=stop)
    assert solves(Trajectory(Task("t", "?", truth), (), (step,))) is expected


def test_answers_of_any_kind_with_a_check_of_your_own() -> None:
    tasks = [Task(f"t{i}", "Name a colour.", "any colour") for i in range(TASKS)]
    colours = ("any colour", "red", "blue")

    def right(step: Step, task: Task, history: Sequence[Step]) -> float:
        return float(any(colour in step.action.text for colour in colours))

    def named(trajectory: Trajectory) -> bool:
        return trajectory.steps[-1].action.text.removeprefix("#### ") in colours

    result = found(lambda: ToolEnv(tasks, reward={"right": (right, 1.0)}), solved=named)
    assert set(terms_of(result.findings)) >= {"hedge_or", "think_only"}
