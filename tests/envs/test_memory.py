"""Notes are all that is left of a page; what they are worth; what a model sees."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from trajgym.envs.check import check_env
from trajgym.envs.memory import MemoryEnv
from trajgym.envs.memory_notes import Event, Notebook, Plan
from trajgym.envs.memory_tasks import MemoryTasks
from trajgym.errors import ConfigError, UnknownNameError
from trajgym.evaluation.audit import audit
from trajgym.policies.scripted import ExpertPolicy
from trajgym.rewards.milestones import numbers_in
from trajgym.rollout import EnvPool, Episode, collect
from trajgym.types import ExpertTurn, Message, StopReason, Task, ToolCall, in_view

PAGES = (
    (Event("new", "Ana", 47), Event("noise", "Ben", 33, "desk")),
    (Event("gone", "Ana"), Event("new", "Ben", 12)),
)
PLAN = Plan(PAGES, asked=("Ben",), room=1)


def plain(plan: Plan) -> dict[str, Any]:
    return {"pages": [[vars(e) for e in page] for page in plan.pages], "asked": plan.asked, "room": plan.room}


TASK = Task("t", PLAN.question, "12", metadata={"ledger": plain(PLAN)})


def call(name: str, **arguments: str) -> ToolCall:
    return ToolCall(name, arguments)


NEXT = call("next_page")


def play(env: MemoryEnv, turns: list[ExpertTurn], task: Task = TASK) -> tuple[list[float], StopReason | None, str]:
    env.reset(seed=0, options={"task": task})
    rewards, stop, shown = [], None, ""
    for turn in turns:
        shown, reward, _, _, info = env.step(env.protocol.render_turn(turn))
        rewards.append(reward)
        stop = info["stop_reason"]
    return rewards, stop, shown


@pytest.mark.parametrize(("reward", "total"), [("sparse", 1.0), ("dense", 1.0), ("hybrid", 1.2)])
@pytest.mark.parametrize("level", [1, 2, 3])
def test_demonstrations_earn_everything_at_every_size(reward: str, total: float, level: int) -> None:
    for room in (2, 3, 4, 8):
        env, source = MemoryEnv(reward=reward), MemoryTasks("test", level, room)
        for seed in range(15):
            task = source.get(f"memory/test/{level}/{room}/{seed}")
            rewards, stop, _ = play(env, list(task.solution), task)
            assert sum(rewards) == pytest.approx(total)
            assert stop is StopReason.ANSWERED


def test_what_each_level_demands() -> None:
    for seed in range(20):
        used = []
        for level in (1, 2, 3):
            plan = Plan.of(MemoryTasks().get(f"memory/train/{level}/4/{seed}"))
            held = [len(plan.held(page)) for page in range(len(plan.pages) + 1)]
            assert max(held) <= plan.room
            events = [event for page in plan.pages for event in page]
            assert 2 * sum(e.kind == "noise" for e in events) >= len(events)
            numbers = [e.number for e in events if e.kind != "gone"]
            assert len(set(numbers)) == len(numbers)
            used.append({e.kind for e in events} - {"noise"})
            if level == 3:
                assert sum(e.kind == "new" for e in events) > plan.room
        assert used == [{"new"}, {"new", "change"}, {"new", "change", "gone"}]


def test_nothing_of_a_page_is_in_view_on_the_next_but_the_notes() -> None:
    env = MemoryEnv(difficulty=3)
    for seed in range(10):
        _, info = env.reset(seed=seed)
        plan = Plan.of(info["task"])
        for page in range(len(plan.pages)):
            shown, *_, info = env.step(env.protocol.render_turn(ExpertTurn(calls=(NEXT,))))
            view = info["messages"]
            assert [m.role for m in view] == ["system", "user"]
            assert shown == "\n\n".join(m.content for m in view)
            earlier = {e.number for events in plan.pages[: page + 1] for e in events} - {0}
            now = {e.number for e in plan.pages[page + 1]} if page + 1 < len(plan.pages) else set()
            assert not (earlier - now) & {int(n) for n in numbers_in(view[1].content) if n >= 10}
        assert env.render_mode is None
    assert plan.question in shown


def test_within_a_page_the_dialogue_grows_and_begins_anew_behind_it() -> None:
    env = MemoryEnv(render_mode="ansi")
    env.reset(seed=0, options={"task": TASK})
    first = env.protocol.render_turn(ExpertTurn(calls=(call("store", key="Ana", text="47"),)))
    *_, info = env.step(first)
    assert [m.role for m in info["messages"]] == ["system", "user", "assistant", "tool"]
    *_, info = env.step(env.protocol.render_turn(ExpertTurn(calls=(NEXT,))))
    assert [m.role for m in info["messages"]] == ["system", "user"]
    assert "Notes (1 of 1): Ana: 47" in info["messages"][1].content
    whole = env.render() or ""
    assert whole.count("Page 1 of 2") == 1
    assert whole.count("│ reward") == 2


def test_failures_of_the_turn_that_leaves_a_page_are_told_on_the_next() -> None:
    turn = ExpertTurn(calls=(call("store", key="a", text="1"), call("store", key="b", text="2"), NEXT))
    rewards, _, shown = play(MemoryEnv(), [turn])
    assert "store: All 1 notes are in use; delete one first.\nPage 2 of 2. Notes (1 of 1): a: 1" in shown
    assert rewards == [0.0]


@pytest.mark.parametrize(
    ("calls", "error", "words"),
    [
        ([call("update", key="Ana", text="1")], "not_found", "no note 'Ana'"),
        ([call("delete", key="Ana")], "not_found", "no note 'Ana'"),
        ([call("store", key="a", text="1"), call("store", key="a", text="2")], "exists", "update or delete"),
        ([call("store", key="a", text="1"), call("store", key="b", text="2")], "full", "delete one first"),
        ([call("store", key="a" * 17, text="1")], "bad_note", "1 to 16 characters"),
        ([call("store", key="a", text=" ")], "bad_note", "1 to 16 characters"),
        ([call("store", key="a", text="1\n2")], "bad_note", "one line"),
        ([NEXT, NEXT, NEXT], "last_page", "the last page"),
    ],
)
def test_what_cannot_be_done_is_said(calls: list[ToolCall], error: str, words: str) -> None:
    env = MemoryEnv()
    env.reset(seed=0, options={"task": TASK})
    shown, _, terminated, truncated, info = env.step(env.protocol.render_turn(ExpertTurn(calls=tuple(calls))))
    assert info["step"].results[-1].error == error
    assert words in shown
    assert (terminated, truncated) == (False, False)


def test_an_answer_before_the_question_pays_nothing() -> None:
    for reward in ("sparse", "dense", "hybrid"):
        assert play(MemoryEnv(reward=reward), [ExpertTurn("#### 12")])[0] == [0.0]
    late = [ExpertTurn(calls=(NEXT, NEXT)), ExpertTurn("#### 12")]
    assert play(MemoryEnv(reward="sparse"), late)[0] == [0.0, 1.0]  # lucky, where it may be


@pytest.mark.parametrize(
    ("key", "text", "share"),
    [("Ana", "47", 1.0), ("ana", "no. 47", 1.0), ("Ana", "46", 0.0), ("Ana", "47 12", 0.0), ("x", "Ana 47", 0.0)],
)
def test_which_notes_are_paid(key: str, text: str, share: float) -> None:
    turns = [ExpertTurn(calls=(call("store", key=key, text=text), NEXT)), ExpertTurn(calls=(NEXT,))]
    assert play(MemoryEnv(), turns)[0] == pytest.approx([0.2 * share / 2, 0.0])


def test_dense_pay_is_taken_back_unless_the_answer_is_right() -> None:
    right = [
        ExpertTurn(calls=(call("store", key="Ana", text="47"), NEXT)),
        ExpertTurn(calls=(call("delete", key="Ana"), call("store", key="Ben", text="12"), NEXT)),
    ]
    env = MemoryEnv(reward="dense")
    assert play(env, [*right, ExpertTurn("#### 12")])[0] == pytest.approx([0.5, 0.5, 0.0])
    assert sum(play(env, [*right, ExpertTurn("#### 13")])[0]) == pytest.approx(0.0)
    assert sum(play(MemoryEnv(reward="dense", max_turns=2), right)[0]) == pytest.approx(0.0)


@pytest.mark.parametrize("reward", ["sparse", "dense", "hybrid"])
def test_the_contract_holds_and_no_exploit_pays(reward: str) -> None:
    check_env(gymnasium.make("Memory-v0", reward=reward), skip_render_check=True)
    result = audit(lambda: MemoryEnv(reward=reward), tasks=10)
    assert result.passed, result.findings
    assert result.leaks == ()


def test_a_clone_goes_on_by_itself() -> None:
    env = MemoryEnv(difficulty=3)
    _, info = env.reset(seed=4)
    first, *others = env.expert(info["task"])
    env.step(first)
    twin = env.clone()
    mine = [env.step(turn)[:2] for turn in others]
    assert mine == [twin.step(turn)[:2] for turn in others]
    assert mine[-1][1] == 1.0


def test_a_trajectory_holds_everything_and_says_where_it_began_anew() -> None:
    with EnvPool(lambda: gymnasium.make("Memory-v0", difficulty=3)) as pool:
        (trajectory,) = collect(ExpertPolicy(), pool, [Episode(0, 0)])
    assert trajectory.stop_reason is StopReason.ANSWERED
    assert [step.observation.begins_anew for step in trajectory.steps] == [True] * 5 + [False]
    assert sum(m.role == "system" for m in trajectory.messages) == 6
    assert in_view(trajectory.messages)[0].role == "system"
    assert len(in_view(trajectory.messages)) == 3
    assert Notebook.replay(trajectory.task, trajectory.steps).asked


def test_tasks_are_seeded_named_and_split() -> None:
    train, test = MemoryTasks("train"), MemoryTasks("test")
    drawn = [train.sample(np.random.default_rng(i)) for i in range(60)]
    assert all(train.get(task.id) == task for task in drawn)
    layouts = [{str([[e.who, e.kind] for p in Plan.of(t).pages for e in p]) for t in ts} for ts in (
        drawn, [test.sample(np.random.default_rng(i)) for i in range(60)])]  # fmt: skip
    assert not layouts[0] & layouts[1]
    for wrong in ("memory/test/1/4/0", "memory/train/9/4/0", "memory/train/1/5/0", "memory/train/1/4/x", ""):
        with pytest.raises(UnknownNameError):
            train.get(wrong)


def test_options_reach_the_ledgers() -> None:
    env = MemoryEnv(split="test", difficulty=2, room=3)
    assert env.reset(seed=0)[1]["task"].id.startswith("memory/test/2/3/")
    named: list[dict[str, Any]] = [{"split": "tset"}, {"reward": "hybird"}, {"pages": 3}]
    for options in named:
        with pytest.raises(UnknownNameError):
            MemoryEnv(**options)
    bounds: list[dict[str, Any]] = [{"room": 1}, {"room": 2.5}, {"difficulty": 4}, {"difficulty": (2, 1)}]
    for options in [*bounds, {"system": ""}]:
        with pytest.raises(ConfigError):
            MemoryEnv(**options)


@pytest.mark.parametrize("ledger", [None, {}, "x", {**plain(PLAN), "asked": ["Zoe"]}, {**plain(PLAN), "room": 0},
                                    {**plain(PLAN), "pages": [[{"kind": "lost", "who": "Ana"}]]}])  # fmt: skip
def test_a_task_without_a_ledger_is_refused(ledger: Any) -> None:
    with pytest.raises(ConfigError, match="holds no ledger"):
        MemoryEnv().reset(options={"task": Task("t", "?", "1", metadata={"ledger": ledger})})


def test_system_messages_at_the_start_of_a_dialogue_do_not_begin_another() -> None:
    start = (Message("system", "a"), Message("system", "b"), Message("user", "c"))
    assert in_view(start) == start
