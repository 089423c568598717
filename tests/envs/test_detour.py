from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import pytest

from trajgym.envs.check import check_env
from trajgym.envs.detour import DetourEnv
from trajgym.envs.detour_house import House, Plan
from trajgym.envs.detour_tasks import DetourTasks
from trajgym.envs.tools import ToolFailure
from trajgym.errors import ConfigError, UnknownNameError
from trajgym.evaluation.audit import audit
from trajgym.types import ExpertTurn, StopReason, Task, ToolCall, discounted_return

PLAN = Plan(start="hall", doors=(("hall", "barn"),), box="hall", key="barn", chest="hall", numbers=(417, 805))
TASK = DetourTasks().get("detour/train/2/5")


def play(env: DetourEnv, task: Task, turns: list[ExpertTurn]) -> tuple[list[float], StopReason | None]:
    env.reset(seed=0, options={"task": task})
    rewards, stop = [], None
    for turn in turns:
        _, reward, _, _, info = env.step(env.protocol.render_turn(turn))
        rewards.append(reward)
        stop = info["stop_reason"]
    return rewards, stop


def call(name: str, **arguments: str) -> ExpertTurn:
    return ExpertTurn(calls=(ToolCall(name, arguments),))


def moves(house: House) -> Iterator[ToolCall]:
    """Every call that changes something."""
    for room in house.plan.beside(house.room):
        yield ToolCall("go", {"room": room})
    yield ToolCall("take", {"thing": "key"})
    yield from (ToolCall("open", {"thing": thing}) for thing in ("box", "chest"))


def shortest(plan: Plan) -> dict[str, list[ExpertTurn]]:
    """Search the whole house, breadth first, for the shortest way to open the box and that to open the chest."""
    waiting: list[tuple[ToolCall, ...]] = [()]
    seen: set[Any] = set()
    found: dict[str, list[ExpertTurn]] = {}
    for path in waiting:
        house = House(plan)
        try:
            for move in path:
                getattr(house, move.name)(**move.arguments)
        except ToolFailure:
            continue
        state = (house.room, house.has_key, house.opened)
        if state in seen:
            continue
        seen.add(state)
        if house.opened:
            number = plan.numbers[house.opened == "chest"]
            turns = [ExpertTurn(calls=(move,)) for move in path]
            found.setdefault(house.opened, [*turns, ExpertTurn(f"#### {number}")])
            continue
        waiting += [(*path, move) for move in moves(house)]
    return found


@pytest.mark.parametrize("reward", ["sparse", "dense", "hybrid"])
def test_the_detour_is_best_and_begins_with_steps_that_pay_nothing(reward: str) -> None:
    env = DetourEnv(reward=reward)
    for level in (1, 2, 3):
        for seed in range(20):
            task = DetourTasks().get(f"detour/train/{level}/{seed}")
            # Whatever an episode does beyond opening one of the two only takes longer, so one of these two is best.
            ways = shortest(Plan.of(task))
            greedy, _ = play(env, task, ways["box"])
            detour, _ = play(env, task, ways["chest"])
            assert max(detour[:-2]) == 0.0, "nothing is paid on the way"
            assert len(detour) >= 2 * level + 3 > len(greedy) == 2
            for gamma in (0.9, 0.95, 1.0):
                assert discounted_return(detour, gamma) > discounted_return(greedy, gamma) > 0.0
            assert discounted_return(detour, 0.3) < discounted_return(greedy, 0.3), "who looks near takes the box"


def test_demonstrations_are_the_shortest_way() -> None:
    for level in (1, 2, 3):
        for seed in range(30):
            task = DetourTasks("test").get(f"detour/test/{level}/{seed}")
            assert len(task.solution) == len(shortest(Plan.of(task))["chest"])


@pytest.mark.parametrize(
    ("reward", "greedy", "detour"),
    [
        ("sparse", [0.0, 0.3], [0.0, 0.0, 0.0, 0.0, 1.0]),
        ("dense", [0.3, 0.0], [0.0, 0.0, 0.0, 1.0, 0.0]),
        ("hybrid", [0.1, 0.3], [0.0, 0.0, 0.0, 0.1, 1.0]),
    ],
)
def test_what_the_two_ways_pay(reward: str, greedy: list[float], detour: list[float]) -> None:
    env = DetourEnv(reward=reward)
    task = Task("t", "?", "805", metadata={"house": vars(PLAN)})
    ways = shortest(PLAN)
    assert play(env, task, ways["box"]) == (pytest.approx(greedy), StopReason.ANSWERED)
    assert play(env, task, ways["chest"]) == (pytest.approx(detour), StopReason.ANSWERED)


def test_dense_pay_is_taken_back_unless_the_number_is_said() -> None:
    task = Task("t", "?", "805", metadata={"house": vars(PLAN)})
    for way in shortest(PLAN).values():
        rewards, _ = play(DetourEnv(reward="dense"), task, [*way[:-1], ExpertTurn("#### 1")])
        assert sum(rewards) == pytest.approx(0.0)
    # The chest's number was guessed, and the box was opened.
    rewards, _ = play(DetourEnv(reward="dense"), task, [call("open", thing="box"), ExpertTurn("#### 805")])
    assert sum(rewards) == pytest.approx(0.0)


def test_opening_is_paid_once() -> None:
    again = [call("open", thing="box")] * 3 + [call("open", thing="chest")]
    assert play(DetourEnv(), TASK, again)[0] == pytest.approx([0.1, 0.0, 0.0, 0.0])


@pytest.mark.parametrize("reward", ["sparse", "dense", "hybrid"])
def test_the_contract_holds(reward: str) -> None:
    check_env(gymnasium.make("Detour-v0", reward=reward))


def test_no_exploit_pays() -> None:
    result = audit(DetourEnv, tasks=10)
    assert result.passed, result.findings
    assert result.leaks == ()


@pytest.mark.parametrize(
    ("turn", "error", "words"),
    [
        (call("go", room="moon"), "no_door", "to moon"),
        (call("take", thing="key"), "not_here", "No key here"),
        (call("take", thing="box"), "too_heavy", "too heavy"),
        (call("open", thing="door"), "not_here", "No door here"),
        (call("open", thing="chest"), "locked", "locked"),
        (call("go", room="barn", how="fast"), None, "how"),
        (call("fly", room="barn"), None, "fly"),
    ],
)
def test_what_cannot_be_done_is_said_and_costs_a_turn(turn: ExpertTurn, error: str | None, words: str) -> None:
    env = DetourEnv()
    env.reset(seed=0, options={"task": Task("t", "?", "805", metadata={"house": vars(PLAN)})})
    shown, reward, terminated, truncated, info = env.step(env.protocol.render_turn(turn))
    assert words in shown
    assert (reward, terminated, truncated) == (0.0, False, False)
    if error is not None:
        assert info["step"].results[0].error == error


def test_opening_one_seals_the_other() -> None:
    house = House(PLAN)
    house.go("barn")
    house.take("key")
    house.go("hall")
    assert house.open("chest") == house.open("chest") == "The chest says 805."
    with pytest.raises(ToolFailure, match="box is sealed"):
        house.open("box")


def test_the_calls_of_one_turn_act_in_their_order() -> None:
    env = DetourEnv()
    calls = tuple(c for turn in TASK.solution for c in turn.calls)
    rewards, stop = play(env, TASK, [ExpertTurn(calls=calls), TASK.solution[-1]])
    assert (rewards, stop) == (pytest.approx([0.1, 1.0]), StopReason.ANSWERED)


def test_a_clone_walks_on_its_own() -> None:
    env = DetourEnv()
    first, *others = [env.protocol.render_turn(turn) for turn in TASK.solution]
    env.reset(seed=0, options={"task": TASK})
    env.step(first)
    twin = env.clone()
    mine = [env.step(turn)[:2] for turn in others]
    assert mine == [twin.step(turn)[:2] for turn in others]
    assert mine[-1][1] == 1.0


def test_options_reach_the_houses() -> None:
    env = DetourEnv(split="test", difficulty=2)
    seen = {env.reset(seed=seed)[1]["task"].id.rpartition("/")[0] for seed in range(5)}
    assert seen == {"detour/test/2"}
    assert DetourEnv(tasks=[TASK]).reset(seed=0)[1]["task"] is TASK
    assert DetourEnv(reward={"accuracy": 1.0}).rubric.weights == {"accuracy": 1.0}
    for options in ({"split": "tset"}, {"reward": "hybird"}, {"rooms": 3}):
        with pytest.raises(UnknownNameError):
            DetourEnv(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "house",
    [
        None,
        {},
        "hall",
        {**vars(PLAN), "doors": [["hall"]]},
        {**vars(PLAN), "key": "moon"},
        {**vars(PLAN), "numbers": [7, 7]},
        {**vars(PLAN), "numbers": 7},
        {**vars(PLAN), "ghost": "hall"},
    ],
)
def test_a_task_without_a_house_is_refused(house: Any) -> None:
    with pytest.raises(ConfigError, match="holds no house"):
        DetourEnv().reset(options={"task": Task("t", "?", "1", metadata={"house": house})})
