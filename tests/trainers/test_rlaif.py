"""RLAIF from end to end with a scripted judge, and what happens when the judge fails on the way."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from trajgym.errors import ConfigError, DataError, EnvironmentFault, TrajgymError, UnknownNameError
from trajgym.policies.base import LostTurn, TextPolicy
from trajgym.rewards.compare import PairJudge
from trajgym.rewards.judge import Judge
from trajgym.trainers import rlaif
from trajgym.trainers.judging import ask_policy, judge_choices, judge_grades
from trajgym.trainers.preferences import read_pairs
from trajgym.trainers.rlaif import Measured, RLAIFResult, run_rlaif
from trajgym.trainers.rlaif_config import RLAIFConfig, load_rlaif_config
from trajgym.trainers.rlaif_resume import changes_within
from trajgym.types import Action, Message, Observation, Step, StopReason, Task, Trajectory

CHOICE = re.compile(r"([0-9a-f]{24}) BETTER: <first, second or equal>\Z")
GRADE = re.compile(r"([0-9a-f]{24}) GRADE: <number>\Z")
QUICK: dict[str, Any] = {"linger": 0.0, "attempts": 1, "cooldown": 0.0}


def part(prompt: str, marker: str, name: str) -> str:
    return prompt.partition(f"[{marker} {name} begins]\n")[2].partition(f"\n[{marker} {name} ends]")[0]


def twos(text: str) -> int:
    return text.count("2")


def _cases(lines: Sequence[str]) -> set[str]:
    return {json.loads(line)["case"] for line in lines}


def share(text: str) -> float:
    return twos(text) / max(1, len(text.replace(" ", "")))


class Likes:
    """Grades by the number of twos and compares by their share, in the form asked for; counts how often it is asked."""

    def __init__(self, fails_after: int | None = None) -> None:
        self.asked = 0
        self.left = fails_after

    def __call__(self, prompts: list[str]) -> list[str]:
        out = []
        for prompt in prompts:
            self.asked += 1
            if self.left is not None and self.asked > self.left:
                raise ConnectionError("no route to judge")
            if (form := GRADE.search(prompt)) is not None:
                out.append(f"{form[1]} GRADE: {min(10, twos(part(prompt, form[1], 'text')))}")
                continue
            form = CHOICE.search(prompt)
            assert form is not None
            a, b = (share(part(prompt, form[1], f"{name} text")) for name in ("first", "second"))
            out.append(f"{form[1]} BETTER: {'equal' if a == b else 'first' if a > b else 'second'}")
        return out


def answer(text: str, task: str = "t", stop: StopReason = StopReason.ANSWERED) -> Trajectory:
    step = Step(
        Action(text), Observation(), terminated=stop.terminates, truncated=not stop.terminates, stop_reason=stop
    )
    return Trajectory(Task(task, "q", "2"), (Message("user", "q"),), (step,))


def configured(digit_model: Path, tmp_path: Path, **more: Any) -> RLAIFConfig:
    policy = {
        "model": str(digit_model), "device": "cpu", "env": "TestIdentity-v0", "updates": 12, "groups_per_update": 4,
        "num_generations": 16, "slots": 64, "advantage_scale": "batch_std",
        "max_turn_tokens": 30, "max_episode_tokens": 48, "learning_rate": 5e-3,
        "kl_coef": 0.0, "monitors": (), "log_trajectories": 0,
    }  # fmt: skip
    reward = {"max_length": 64, "learning_rate": 1e-2, "batch_size": 16, "epochs": 10, "monitors": (), "held_out": 0.25}
    return load_rlaif_config(
        {
            "policy": policy, "reward_model": reward, "tasks": 16, "candidates": 6,
            "most_per_task": 40, "output_dir": str(tmp_path),
            "eval_tasks": 24, **more,
        }
    )  # fmt: skip


def test_the_four_steps(digit_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judge = Likes()
    config = configured(digit_model, tmp_path)
    result = run_rlaif(config, judge)
    assert result.judged["pairs"] == len(read_pairs(result.folder / "pairs.jsonl")) > 40
    assert result.judged["candidates"] == 16 * 6
    assert (
        json.loads((result.folder / "reward-model" / "report.json").read_text())["held_out"]["accuracy"]["value"] > 0.8
    )
    assert result.after.score > result.before.score + 0.2  # the policy says twos now
    assert result.after.accuracy is not None
    summary = json.loads((result.folder / "summary.json").read_text())
    assert summary["after"]["score"] == result.after.score
    assert summary["warnings"] == list(result.warnings)
    out = capsys.readouterr().out
    assert "4/4" in out
    assert f"Score {result.before.score:.3f} → {result.after.score:.3f}" in out

    asked = judge.asked
    again = run_rlaif(config.model_copy(update={"resume": True}), judge)
    assert judge.asked == asked  # nothing is done twice
    assert (again.before, again.after) == (result.before, result.after)
    with pytest.raises(ConfigError, match="holds a run already"):
        run_rlaif(config, judge)


def test_a_judge_that_fails_on_the_way_is_gone_on_with(
    digit_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trajgym.trainers.judging._PORTION", 8)
    monkeypatch.setattr(rlaif, "_reward_model", lambda *args: pytest.skip.Exception("enough"))
    config = configured(digit_model, tmp_path, judging="grades")
    with pytest.raises(EnvironmentFault, match="judge is out of order: ConnectionError"):
        run_rlaif(config, Likes(fails_after=20))
    folder = tmp_path / "rlaif-seed0"
    known = (folder / "verdicts.jsonl").read_text().splitlines()
    assert 8 <= len(known) < 96
    (folder / "verdicts.jsonl").write_text("\n".join([*known, '{"verd']))  # killed in mid-line
    whole, judge = Likes(), Likes()
    candidates = rlaif._candidates(config, config.policy_options(), folder)
    pairs, found = rlaif._pairs(config, config.policy_options(), folder, candidates, judge)
    lines = (folder / "verdicts.jsonl").read_text().splitlines()
    assert lines[: len(known)] == known
    assert len(_cases(known) | _cases(lines[len(known) + 1 :])) == len(lines) - 1  # each was asked about once
    other, counts = judge_grades(
        Judge(whole), candidates, tmp_path / "log.jsonl", least_gap=0.0, most_per_task=config.most_per_task, seed=0
    )
    assert [(p.chosen, p.rejected) for p in pairs] == [(p.chosen, p.rejected) for p in other]
    assert found == counts.to_json()
    assert judge.asked < whole.asked


def test_grades_make_pairs_and_everything_is_counted(tmp_path: Path) -> None:
    answers = [answer(t) for t in ("222", "2", "0", "1")] + [answer("", stop=StopReason.MAX_TURNS)]
    answers += [answer("0", "u"), answer("1", "u")]
    pairs, found = judge_grades(
        Judge(Likes(), **QUICK), answers, tmp_path / "log", least_gap=1.0, most_per_task=9, seed=0
    )
    assert [(p.words("chosen"), p.words("rejected"), p.margin) for p in pairs] == [
        ("222", "2", 2.0), ("222", "0", 3.0), ("222", "1", 3.0)
    ]  # fmt: skip
    assert (found.candidates, found.unanswered, found.cases, found.unreadable, found.equal) == (7, 1, 6, 0, 4)


def test_choices_drop_what_depends_on_the_order(tmp_path: Path) -> None:
    def biased(prompts: list[str]) -> list[str]:
        """Knows twos from ones, and otherwise likes what stands first; says nothing of threes."""
        out = []
        for prompt, reply in zip(prompts, Likes()(prompts), strict=True):
            out.append(
                "I cannot say." if "3" in part(prompt, reply[:24], "first text") else reply.replace("equal", "first")
            )
        return out

    answers = [answer(text) for text in ("2", "0", "1", "3")]
    pairs, found = judge_choices(PairJudge(biased, **QUICK), answers, tmp_path / "log", most_per_task=9, seed=0)
    assert {(p.words("chosen"), p.words("rejected")) for p in pairs} == {("2", "0"), ("2", "1")}
    assert (found.cases, found.unreadable, found.inconsistent, found.equal, found.pairs) == (6, 3, 1, 0, 2)
    few, counted = judge_choices(PairJudge(Likes(), **QUICK), answers, tmp_path / "few", most_per_task=2, seed=0)
    assert counted.cases == 2
    assert len(few) <= 2


def test_a_judge_of_one_mind_teaches_nothing(tmp_path: Path) -> None:
    answers = [answer("0"), answer("1"), answer("2", "u")]
    with pytest.raises(DataError, match=r"prefers nothing: of 3 candidates, 0 gave no answer; .* 1 pairs were equal"):
        judge_choices(PairJudge(Likes(), **QUICK), answers, tmp_path / "log", most_per_task=9, seed=0)
    many = [answer(str(i)) for i in range(30)]
    babbler = Judge(lambda prompts: ["fine"] * len(prompts), **QUICK)
    with pytest.raises(EnvironmentFault, match="20 verdicts in a row"):
        judge_grades(babbler, many, tmp_path / "g", least_gap=0, most_per_task=9, seed=0)


def test_what_could_not_be_read_is_asked_again(tmp_path: Path) -> None:
    answers = [answer(text) for text in ("2", "0", "1")]
    log = tmp_path / "log"
    told: dict[str, Any] = {"most_per_task": 9, "seed": 0, "by": "one"}
    nonsense = PairJudge(lambda prompts: ["blah"] * len(prompts), **QUICK)
    with pytest.raises(DataError, match=r"3 were unreadable.*Take another criterion or judge"):
        judge_choices(nonsense, answers, log, **told)
    assert [json.loads(line)["verdict"] for line in log.read_text().splitlines()] == ["unreadable"] * 3

    def partly(prompts: list[str]) -> list[str]:
        replies = zip(prompts, Likes()(prompts), strict=True)
        return ["blah" if "1" in part(prompt, r[:24], "first text") else r for prompt, r in replies]

    pairs, found = judge_choices(PairJudge(partly, **QUICK), answers, log, **told)
    assert (found.pairs, found.unreadable) == (1, 2)
    judge = Likes()
    pairs, found = judge_choices(PairJudge(judge, **QUICK), answers, log, **told)
    assert (found.unreadable, found.equal, judge.asked) == (0, 1, 4)  # two pairs, in both orders
    assert {(p.words("chosen"), p.words("rejected")) for p in pairs} == {("2", "0"), ("2", "1")}

    graded: dict[str, Any] = {"least_gap": 0.0, **told}
    with pytest.raises(DataError, match="3 were unreadable"):
        judge_grades(Judge(lambda prompts: ["blah"] * len(prompts), **QUICK), answers, log, **graded)
    assert len(judge_grades(Judge(Likes(), **QUICK), answers, log, **graded)[0]) == 2


def test_verdicts_are_one_judge_s_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = [answer(text) for text in ("2", "0", "1")]
    log = tmp_path / "log"
    told: dict[str, Any] = {"most_per_task": 9, "seed": 0}
    first, _ = judge_choices(PairJudge(Likes(), **QUICK), answers, log, by="one", **told)
    assert "not used" not in capsys.readouterr().out

    def contrary(prompts: list[str]) -> list[str]:
        swapped = {"first": "second", "second": "first"}
        return [re.sub(r"first|second", lambda m: swapped[m[0]], r) for r in Likes()(prompts)]

    other, _ = judge_choices(PairJudge(contrary, **QUICK), answers, log, by="two", **told)
    assert {p.words("rejected") for p in other} == {p.words("chosen") for p in first} == {"2"}
    assert "3 verdicts in" in (out := capsys.readouterr().out)
    assert "another judge's" in out
    asked = Likes()
    judge_choices(PairJudge(asked, "Be short.", **QUICK), answers, log, by="one", **told)
    assert asked.asked == 6  # by another criterion nothing is known yet
    back, _ = judge_choices(PairJudge(contrary, **QUICK), answers, log, by="one", **told)
    assert back == first  # what it said before is there


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"judge": "/nowhere/judge"}, "judge: .*'/nowhere/judge'"),
        ({"terms": {"formt": 0.1}}, "Did you mean 'format'"),
        ({"eval_kwargs": {"splt": "test"}}, "splt"),
        ({"reward_model": {"max_length": 100}}, r"max_length \(100\) exceeds the 64 positions"),
        ({"reward_model": {"monitors": ["tensorbord"]}}, "Did you mean 'tensorboard'"),
        ({"policy": {"estimator": "nonsense"}}, "nonsense"),
        ({"policy": {"epochs": 1, "updates": None, "env": "ArithmeticTool-v0"}}, "tasks without end"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_made(
    more: dict[str, Any], why: str, digit_model: Path, tmp_path: Path
) -> None:
    whole = configured(digit_model, tmp_path)
    both = {name: {**getattr(whole, name), **more.pop(name, {})} for name in ("policy", "reward_model")}
    with pytest.raises(TrajgymError, match=why):
        run_rlaif(load_rlaif_config({**whole.model_dump(), **both, **more}))
    assert not (tmp_path / "rlaif-seed0").exists()


def test_a_run_goes_on_with_what_nothing_depends_on_yet(
    digit_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Trained(Exception):
        pass

    def no_model(*args: Any) -> Path:
        raise Trained

    monkeypatch.setattr(rlaif, "_reward_model", no_model)
    config = configured(digit_model, tmp_path, tasks=2, candidates=3)
    with pytest.raises(DataError, match="prefers nothing"):
        run_rlaif(config, lambda prompts: ["blah"] * len(prompts))
    folder = tmp_path / "rlaif-seed0"
    sampled = (folder / "candidates.jsonl").read_bytes()
    longer = {"policy": {**config.policy, "updates": 20}, "terms": {"format": 0.1}, "eval_tasks": 3}
    changed = {"criterion": "Be short.", "judging": "grades", "judge_timeout": 9.0, "resume": True, **longer}
    with pytest.raises(Trained):
        run_rlaif(config.model_copy(update=changed), Likes())
    assert (folder / "candidates.jsonl").read_bytes() == sampled
    for bound in ({"tasks": 3}, {"policy": {**config.policy, "temperature": 0.5}}, {"criterion": "Be long."}):
        (name,) = bound
        with pytest.raises(ConfigError, match=rf"with other options \({name}: "):
            run_rlaif(config.model_copy(update={**changed, **bound}), Likes())


@pytest.mark.parametrize("judging", ["choices", "grades"])
def test_a_judge_that_hangs_is_waited_for_no_longer_than_told(judging: str, digit_model: Path, tmp_path: Path) -> None:
    config = configured(digit_model, tmp_path, tasks=2, candidates=3, judging=judging, judge_timeout=0.01)
    released = threading.Event()
    with pytest.raises(EnvironmentFault, match=r"judge is out of order: TimeoutError: no answer within 0\.01 s"):
        run_rlaif(config, lambda prompts: [str(released.wait()) for _ in prompts])
    released.set()
    assert not (tmp_path / "rlaif-seed0" / "judged.json").exists()


def test_options_count_once_something_was_made_with_them(tmp_path: Path) -> None:
    before = load_rlaif_config({"policy": {"updates": 1}}).plain()
    now = {
        **before, "tasks": 9, "judge": "other", "least_gap": 2.0, "reward_model": {"epochs": 3.0}, "terms": {"x": 1.0},
        "eval_kwargs": {"split": "test"}, "policy": {"updates": 2}, "judge_timeout": 1.0,
    }  # fmt: skip

    def refused() -> set[str]:
        return {text.partition(":")[0] for text in changes_within(tmp_path, before, now, before).refused}

    assert refused() == set()
    for file, names in (
        ("candidates.jsonl", {"tasks"}),
        ("verdicts.jsonl", set()),
        ("judged.json", set()),
        ("pairs.jsonl", {"judge", "least_gap"}),
        ("reward-model/report.json", {"reward_model"}),
        ("before.jsonl", {"eval_kwargs"}),
        ("policy/checkpoints/update-000001/trainer.pt", {"terms"}),
        ("after.jsonl", {"policy"}),
    ):
        known = refused()
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
        assert refused() == known | names


def test_any_policy_can_judge() -> None:
    class Echo(TextPolicy):
        def act(self, messages: Any, task: Task, seed: int = 0) -> str:
            return str(messages[-1].content).upper()

    ask = ask_policy(Echo(capacity=2))
    assert ask(["a", "b", "c", "d", "e"]) == ["A", "B", "C", "D", "E"]
    assert ask([]) == []

    class Broken(Echo):
        def act(self, messages: Any, task: Task, seed: int = 0) -> str:
            raise RuntimeError("down")

    broken = Broken()
    with pytest.raises(RuntimeError, match="down"):
        ask_policy(broken)(["a"])
    assert not broken._live

    class Gone(Echo):
        def poll(self) -> list[tuple[int, Action]]:
            return [(number, LostTurn("", error=EnvironmentFault("no route"))) for number, _ in super().poll()]

    gone = Gone()
    with pytest.raises(EnvironmentFault, match="no route"):  # no reply is not an empty one
        ask_policy(gone)(["a"])
    assert not gone._live


def test_a_result_is_told_as_it_is() -> None:
    def result(before: Measured, after: Measured) -> tuple[str, ...]:
        return RLAIFResult(Path("x"), {}, before, after, Path("m")).warnings

    from trajgym.evaluation.evaluate import Share

    low, high = Measured(0.4, Share(8, 10), 20.0), Measured(0.6, Share(9, 10), 20.0)
    assert result(low, high) == ()
    assert result(high, low) == ("the score did not rise (0.600 → 0.400)",)
    [hacked] = result(low, Measured(0.9, Share(2, 10), 20.0))
    assert "right answers became fewer (80% → 20%)" in hacked
    assert result(low, Measured(0.6, None, 90.0)) == ("answers grew from 20 to 90 characters",)


@pytest.mark.parametrize(
    ("more", "error", "why"),
    [
        ({"judgin": "grades"}, UnknownNameError, "Did you mean 'judging'"),
        ({"policy": {"updates": 1, "modle": "tiny"}}, ConfigError, "Did you mean 'model'"),
        ({"policy": {}}, ConfigError, "either updates or epochs"),
        ({"policy": {"updates": 1, "name": "x"}}, ConfigError, "policy holds name"),
        ({"policy": {"updates": 1, "env_kwargs": {"reward": "sparse"}}}, ConfigError, "go into terms"),
        ({"reward_model": {"pairs": "x"}}, ConfigError, "which the judge makes"),
        ({"reward_model": {"epoch": 1}}, ConfigError, "Did you mean 'epochs'"),
        ({"terms": {"learned": 1.0}}, ConfigError, "the reward model's name"),
        ({"candidates": 1}, ConfigError, "candidates"),
        ({"eval_kwargs": {"reward": "sparse"}}, ConfigError, "eval_kwargs holds a reward"),
    ],
)
def test_bad_options(more: dict[str, Any], error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        load_rlaif_config({"policy": {"updates": 1}, **more})


def test_a_model_can_be_the_judge(digit_model: Path, tmp_path: Path) -> None:
    config = configured(digit_model, tmp_path, judge="tiny", judge_tokens=8, judge_context=64)
    ask = rlaif._judge(config, config.policy_options())
    short, long = ask(["48 + 24?", "What is it? " * 40])
    assert len(short) > 0
    assert long == ""  # no room for a verdict: it counts as unreadable
    assert ask(["48 + 24?"]) == [short]  # temperature 0
