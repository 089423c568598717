"""Preference pairs: made, read, written, split, drawn from trajectories, checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajgym.errors import DataError
from trajgym.evaluation.records import trajectory_row, write_jsonl
from trajgym.trainers.preference_checks import checked_pairs, length_bias
from trajgym.trainers.preference_sources import load_pairs, pairs_from_rewards, pairs_from_scores
from trajgym.trainers.preferences import PreferencePair, make_pair, read_pairs, split_pairs, write_pairs
from trajgym.types import Action, Message, Observation, Step, StopReason, Task, Trajectory

PROMPT = (Message("system", "Be brief."), Message("user", "48 + 24?"))


def played(
    *turns: str, task: str = "t", right: bool = False, fault: str | None = None, finish: str = "stop"
) -> Trajectory:
    steps = [Step(Action(text), Observation((Message("tool", f"<{text}>", name="calc"),))) for text in turns[:-1]]
    paid = {"accuracy": float(right)}
    steps.append(
        Step(
            Action(turns[-1], finish=finish),
            Observation(),
            reward=float(right),
            reward_terms=paid,
            terminated=True,
            stop_reason=StopReason.ANSWERED,
        )
    )
    return Trajectory(Task(task, "48 + 24?", "72"), PROMPT, tuple(steps), fault=fault)


def pair(chosen: str, rejected: str, question: str = "q", **more: Any) -> PreferencePair:
    return make_pair(question, chosen, rejected, **more)


# --- the format


def test_what_a_reward_model_sees_of_a_pair() -> None:
    [made] = pairs_from_rewards([played("look up", "#### 72", right=True), played("#### 73")])
    assert made.question == "48 + 24?"
    assert made.words("chosen") == "look up\n\n#### 72"
    assert made.words("rejected") == "#### 73"
    assert [m.role for m in made.chosen] == ["assistant", "tool", "assistant"]
    assert (made.prompt, made.turns, made.margin, made.origin, made.task_id) == (PROMPT, 2, 1.0, "reward", "t")


def test_pairs_on_disk_come_back(tmp_path: Path) -> None:
    [tools] = pairs_from_rewards([played("call", "#### 72", right=True), played("#### 73")])
    pairs = [tools, pair("a", "b"), pair("\ud800", "é", margin=0.5, origin="me")]
    write_pairs(tmp_path / "pairs.jsonl", pairs)
    back = read_pairs(tmp_path / "pairs.jsonl")
    assert back[0] == tools
    assert back[2] == pairs[2]
    assert (back[1].chosen, back[1].origin) == (pairs[1].chosen, "")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: a pair needs prompt, chosen, rejected"),
        ('{"prompt": "q", "chosen": "a"}', "needs rejected; got prompt, chosen"),
        ('{"prompt": "q", "chosen": "a", "rejected": null}', "needs rejected"),
        ('{"prompt": "q", "chosen": 3, "rejected": "b"}', "line 2: chosen: expected a list of messages"),
        ('{"prompt": "q", "chosen": [{"role": "user", "content": "a"}], "rejected": "b"}', "begin with the assistant"),
        ('{"prompt": [{"role": "assistant", "content": "q"}], "chosen": "a", "rejected": "b"}', "must not end with"),
        ('{"prompt": "q", "chosen": "a", "rejected": "b", "margin": NaN}', "margin must be a finite number"),
        ('{"prompt": "q", "chosen": "a", "rejected": "b", "margin": -1}', "at least 0"),
        ('{"prompt": "q", "chosen": "a", "rejected": "b", "margin": true}', "margin must be a number"),
    ],
)
def test_a_line_that_is_no_pair(tmp_path: Path, line: str, why: str) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(f'{{"prompt": "q", "chosen": "a", "rejected": "b"}}\n{line}\n')
    with pytest.raises(DataError, match=why):
        read_pairs(file)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_pairs(tmp_path / "nothing.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(DataError, match="holds no pairs"):
        load_pairs(tmp_path / "empty.jsonl")


@given(st.integers(2, 30), st.floats(0.01, 0.99), st.integers(0, 5))
def test_no_question_is_on_both_sides_of_a_split(count: int, share: float, seed: int) -> None:
    pairs = [pair(str(i), "no", question=str(i % count)) for i in range(2 * count)]
    train, held_out = split_pairs(pairs, share, seed=seed)
    assert len(train) + len(held_out) == len(pairs)
    assert train
    assert held_out
    assert not {p.question for p in train} & {p.question for p in held_out}
    assert split_pairs(pairs, share, seed=seed) == (train, held_out)


def test_a_split_needs_two_questions() -> None:
    assert split_pairs([pair("a", "b")], 0.0) == ([pair("a", "b")], [])
    with pytest.raises(DataError, match="held_out: 0"):
        split_pairs([pair("a", "b"), pair("a", "c")], 0.1)


# --- where they come from


def test_right_against_wrong_of_the_same_task() -> None:
    trajectories = [
        played("r1", right=True), played("w1"), played("w2"),
        played("other", task="u"),
        played("broken", right=True, fault="OSError"), played("cut", finish="turn_tokens"),
    ]  # fmt: skip
    pairs = pairs_from_rewards(trajectories)
    assert [(p.words("chosen"), p.words("rejected")) for p in pairs] == [("r1", "w1"), ("r1", "w2")]
    last = pairs_from_rewards(trajectories, score=lambda t: float(t.steps[-1].action.text == "w2"))
    assert [p.words("chosen") for p in last] == ["w2", "w2"]


@pytest.mark.parametrize(
    ("trajectories", "why"),
    [
        ([played("a"), played("b")], r"2 whole trajectories of 1 tasks make no pair: .* \(wrong\)"),
        ([played("a", right=True), played("b", task="u", right=True)], r"\(right\)"),
        ([played("a", right=True), played("b", task="u")], r"of 2 tasks .* \(wrong, right\)"),
        ([played("a", fault="x")], "there is none"),
        ([], "0 whole trajectories"),
    ],
)
def test_one_class_only_makes_no_pair(trajectories: list[Trajectory], why: str) -> None:
    with pytest.raises(DataError, match=why):
        pairs_from_rewards(trajectories)


def test_scores_ties_and_unknown_ones() -> None:
    answers = [played(text) for text in "abcd"]
    pairs = pairs_from_scores(answers, [3.0, None, 1.0, 2.5], least_gap=0.5)
    assert [(p.words("chosen"), p.words("rejected"), p.margin) for p in pairs] == [("a", "c", 2.0), ("d", "c", 1.5)]
    for bad in (float("nan"), float("inf")):
        with pytest.raises(DataError, match="must be finite"):
            pairs_from_scores(answers, [0.0, bad, 1.0, 2.0])


def test_a_task_with_many_answers_does_not_outweigh_the_others() -> None:
    answers = [played(f"a{i}", right=i % 2 == 0) for i in range(12)]
    some = pairs_from_rewards(answers, most_per_task=5, seed=1)
    assert len(some) == 5
    assert some == pairs_from_rewards(answers, most_per_task=5, seed=1) != pairs_from_rewards(answers, most_per_task=5)


def test_run_folders_and_their_files_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "trajectories"
    folder.mkdir(parents=True)
    write_jsonl(folder / "update-000001.jsonl", [trajectory_row(played("r", right=True))])
    write_jsonl(folder / "update-000002.jsonl", [trajectory_row(played("w"))])
    [made] = load_pairs(tmp_path / "run")
    assert (made.words("chosen"), made.words("rejected")) == ("r", "w")
    with pytest.raises(DataError, match=r"\(right\)"):
        load_pairs(folder / "update-000001.jsonl")
    (tmp_path / "bare").mkdir()
    with pytest.raises(DataError, match="holds no trajectories"):
        load_pairs(tmp_path / "bare")


# --- what is wrong with them


def test_what_cannot_be_learned_from_is_counted() -> None:
    pairs = [
        pair("a", "b"), pair("a", "b"), pair("same", "same"), pair(" ", "b"), pair("a", ""), pair("a", "b", " "),
        pair("c", "d", margin=0.0), pair("x", "y"), pair("y", "x"),
    ]  # fmt: skip
    kept, report = checked_pairs(pairs)
    assert kept == [pairs[0]]
    counts = (report.identical, report.empty, report.ties, report.duplicates, report.contradictions)
    assert counts == (1, 3, 1, 1, 2)
    assert report.given == report.kept + sum(counts)
    assert report.warnings == ("2 pairs contradict one another",)
    assert json.loads(json.dumps(report.to_json()))["length"]["pairs"] == 1
    with pytest.raises(DataError, match="of 2, 1 identical, 1 ties"):
        checked_pairs([pair("a", "a"), pair("a", "b", margin=0)])
    with pytest.raises(DataError, match="of 0, there is none"):
        checked_pairs([])


def test_length_that_decides_is_told() -> None:
    padded = [pair("yes " * (5 + i % 3), "no", str(i)) for i in range(30)]
    bias = checked_pairs(padded)[1].length
    assert (bias.longer, bias.shorter) == (30, 0)
    assert bias.correlation > 0.95
    assert "the longer side is preferred in 30 of 30 pairs" in bias.warning
    brief = [pair(p.words("rejected"), p.words("chosen"), p.question) for p in padded]
    assert length_bias(brief).correlation == -bias.correlation
    assert "the shorter side is preferred in 30 of 30" in length_bias(brief).warning
    assert length_bias(padded[:15] + brief[15:]).warning == ""
    assert length_bias(padded[:4]).warning == ""  # too few to say


def test_a_judges_margins_count_with_their_sign() -> None:
    pairs = [pair("long text", "short", "1"), pair("ab", "longer", "2")]
    scored = length_bias(pairs, [2.0, -1.0])  # prefers the longer side of both
    assert (scored.longer, scored.shorter) == (2, 0)
    assert scored.correlation == pytest.approx((4 * 2 + 4 * 1) / (32 * 5) ** 0.5)
    assert (scored.mean_preferred, scored.mean_other) == (7.5, 3.5)
    assert length_bias(pairs, [0.0, 0.0]).pairs == 0
