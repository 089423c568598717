"""What the picture shows is what is there, and only the picture shows it."""

from __future__ import annotations

import re
import zlib
from base64 import b64decode
from collections import Counter
from typing import Any

import gymnasium
import numpy as np
import pytest

from trajgym.envs.check import check_env
from trajgym.envs.grid import GridEnv
from trajgym.envs.grid_map import CELL, COLOURS, Plan, Walker, png, read_png
from trajgym.envs.grid_tasks import GridTasks, walk
from trajgym.errors import ConfigError, UnknownNameError
from trajgym.evaluation.audit import audit
from trajgym.types import ExpertTurn, StopReason, Task, ToolCall, discounted_return

ROWS = ("..#", "#..")
GRID = {
    "rows": ROWS,
    "start": [0, 0],
    "squares": {"green": [1, 2], "red": [0, 1]},
    "numbers": {"green": 57, "red": 12},
    "asked": "green",
    "fog": False,
}
TASK = Task("t", "Walk to the green square and say its number.", "57", metadata={"grid": GRID})
WAY = ["right", "down", "right"]


def moves(*directions: str) -> ExpertTurn:
    return ExpertTurn(calls=tuple(ToolCall("move", {"direction": direction}) for direction in directions))


def play(env: GridEnv, turns: list[ExpertTurn], task: Task = TASK) -> tuple[list[float], StopReason | None, list[str]]:
    env.reset(seed=0, options={"task": task})
    rewards, stop, shown = [], None, []
    for turn in turns:
        text, reward, _, _, info = env.step(env.protocol.render_turn(turn))
        rewards.append(reward)
        shown.append(text)
        stop = info["stop_reason"]
    return rewards, stop, shown


def colour_at(picture: Any, row: int, column: int) -> tuple[int, ...]:
    return tuple(int(v) for v in picture[row * CELL, column * CELL])


def test_the_picture_shows_what_is_there() -> None:
    picture = Walker(Plan.of(TASK)).image()
    assert (picture.shape, picture.dtype) == ((2 * CELL, 3 * CELL, 3), np.uint8)
    assert colour_at(picture, 0, 2) == colour_at(picture, 1, 0) == (60, 60, 60)
    assert colour_at(picture, 1, 2) == COLOURS["green"]
    assert colour_at(picture, 0, 1) == COLOURS["red"]
    assert colour_at(picture, 1, 1) == colour_at(picture, 0, 0) == (255, 255, 255)
    assert tuple(picture[CELL // 2, CELL // 2]) == (0, 0, 0)
    assert Walker(Plan.of(TASK)).text() == "@R#\n#.G"


def test_files_are_png() -> None:
    picture = Walker(Plan.of(TASK)).image()
    data = png(picture)
    assert np.array_equal(read_png(data), picture)
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    place = 8
    while place < len(data):  # every chunk's own check sum
        size = int.from_bytes(data[place : place + 4], "big")
        body = data[place + 4 : place + 8 + size]
        assert zlib.crc32(body) == int.from_bytes(data[place + 8 + size : place + 12 + size], "big")
        place += 12 + size
    pytest.importorskip("PIL")
    import io

    from PIL import Image

    assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), picture)


def test_only_the_picture_says_where_things_are() -> None:
    env = GridEnv(difficulty=2)
    texts = set()
    for seed in range(6):
        text, info = env.reset(seed=seed)
        (address,) = re.findall(r"data:image/png;base64,([A-Za-z0-9+/=]+)", text)
        assert np.array_equal(read_png(b64decode(address)), info["image"])
        plan = Plan.of(info["task"])
        words = text.replace(address, "").replace(plan.asked, "COLOUR")
        assert not any(row in words for row in plan.rows)
        texts.add(words)
    assert len(texts) == 1, "two grids whose colour is the same differ in the picture alone"


@pytest.mark.parametrize(("view", "image", "letters"), [("image", 1, 0), ("text", 0, 1), ("both", 1, 1)])
def test_views(view: str, image: int, letters: int) -> None:
    env = GridEnv(view=view)
    text, info = env.reset(options={"task": TASK})
    step, *_, after = env.step(env.protocol.render_turn(moves("right", "down")))
    for shown, picture in ((text, info["image"]), (step, after["image"])):
        assert shown.count("data:image/png") == image
        assert ("#.G" in shown or "#@G" in shown) == bool(letters)
        assert picture.shape == (16, 24, 3)
    assert not np.array_equal(info["image"], after["image"])


def test_rendering() -> None:
    env = gymnasium.make("Grid-v0", render_mode="rgb_array", difficulty=1)
    _, info = env.reset(seed=0)
    picture: Any = env.render()
    assert np.array_equal(picture, info["image"])
    written = GridEnv(render_mode="ansi", view="text")
    written.reset(seed=0)
    assert "Walk to" in written.render()


@pytest.mark.parametrize(
    ("reward", "paid"), [("sparse", [0.0, 1.0]), ("dense", [0.5 + 0.2 * 1.0, 0.5 - 0.2]), ("hybrid", [0.1, 1.0])]
)
def test_what_the_way_pays(reward: str, paid: list[float]) -> None:
    rewards, stop, _ = play(GridEnv(reward=reward), [moves(*WAY), ExpertTurn("#### 57")])
    assert stop is StopReason.ANSWERED
    assert rewards == pytest.approx(paid)


def test_nearness_pays_nothing_for_going_to_and_fro() -> None:
    env = GridEnv(reward="dense")
    back = [moves("right"), moves("left")] * 5
    rewards, _, _ = play(env, back)
    assert sum(rewards) == pytest.approx(0.0)
    rewards, _, _ = play(env, [*back, moves(*WAY), ExpertTurn("#### 1")])
    assert sum(rewards) == pytest.approx(0.0)
    assert play(GridEnv(), [moves(*WAY), moves("left"), moves("right")])[0] == pytest.approx([0.1, 0.0, 0.0])


@pytest.mark.parametrize("level", [1, 2, 3])
def test_demonstrations_earn_everything(level: int) -> None:
    env = GridEnv(difficulty=level, view="text")
    for seed in range(12):
        task = GridTasks("test").get(f"grid/test/{level}/{seed}")
        rewards, stop, _ = play(env, list(task.solution), task)
        assert (sum(rewards), stop) == (pytest.approx(1.1), StopReason.ANSWERED)
        assert sum(len(turn.calls) for turn in task.solution) < 60
        if level < 3:
            plan = Plan.of(task)
            assert sum(map(len, walk(plan))) == plan.distances(plan.start)[plan.squares[plan.asked]]


def test_in_fog_one_has_to_go_back_on_the_way_one_chose() -> None:
    """What is seen does not say which way leads on; even a search that wastes nothing meets dead ends and returns."""
    for seed in range(20):
        plan = Plan.of(GridTasks().get(f"grid/train/3/{seed}"))
        assert plan.fog
        walker, places = Walker(plan), [plan.start]
        assert "?" in walker.text()
        for move in (move for turn in walk(plan) for move in turn):
            walker.move(move)
            places.append(walker.place)
        assert max(Counter(places).values()) > 1
        assert len(places) - 1 > plan.distances(plan.start)[walker.place]
        unseen = Walker(plan)
        assert (190, 190, 190) in {tuple(int(v) for v in pixel) for pixel in unseen.image().reshape(-1, 3)}


def test_going_back_costs_now_and_pays_later() -> None:
    env, gamma = GridEnv(difficulty=3, view="text"), 0.95
    task = GridTasks().get("grid/train/3/1")
    whole, _, _ = play(env, list(task.solution), task)
    half = task.solution[: len(task.solution) // 2]
    stuck, _, _ = play(env, [*half, ExpertTurn("#### 10")], task)
    assert discounted_return(whole, gamma) > discounted_return(stuck, gamma)
    assert max(whole[:-2]) == 0.0


@pytest.mark.parametrize(
    ("turn", "error", "words"),
    [(moves("up"), "wall", "There is a wall."), (moves("north"), "no_direction", "up, down, left, right")],
)
def test_what_cannot_be_done_is_said(turn: ExpertTurn, error: str, words: str) -> None:
    env = GridEnv()
    _, _, shown = play(env, [turn])
    assert words in shown[0]
    assert env._steps[0].results[0].error == error


def test_the_number_of_another_square_is_wrong() -> None:
    rewards, _, shown = play(GridEnv(), [moves("right"), ExpertTurn("#### 12")])
    assert "You are on the red square. It says 12." in shown[0]
    assert rewards == [0.0, 0.0]


@pytest.mark.parametrize("reward", ["sparse", "dense", "hybrid"])
def test_the_contract_holds_and_no_exploit_pays(reward: str) -> None:
    check_env(gymnasium.make("Grid-v0", reward=reward), skip_render_check=True)
    result = audit(lambda: GridEnv(reward=reward, difficulty=2), tasks=8)
    assert result.passed, result.findings
    assert result.leaks == ()


def test_a_clone_walks_on_its_own() -> None:
    env = GridEnv()
    env.reset(seed=0, options={"task": TASK})
    env.step(env.protocol.render_turn(moves("right")))
    twin = env.clone()
    twin.step(twin.protocol.render_turn(moves("left")))
    shown, *_, info = env.step(env.protocol.render_turn(moves("down", "right")))
    assert "It says 57." in shown
    assert not np.array_equal(info["image"], twin.image())


def test_tasks_are_seeded_named_and_split() -> None:
    train, test = GridTasks("train"), GridTasks("test")
    drawn, held_out = ([source.sample(np.random.default_rng(i)) for i in range(60)] for source in (train, test))
    assert all(train.get(task.id) == task for task in drawn)
    layouts = [{str([task.metadata["grid"][k] for k in ("rows", "start", "squares", "asked")]) for task in tasks}
               for tasks in (drawn, held_out)]  # fmt: skip
    assert not layouts[0] & layouts[1]
    for wrong in ("grid/test/1/0", "grid/train/4/0", ""):
        with pytest.raises(UnknownNameError):
            train.get(wrong)
    with pytest.raises(UnknownNameError):
        GridEnv(view="sound")
    with pytest.raises(ConfigError):
        GridEnv(difficulty=4)


@pytest.mark.parametrize(
    "grid",
    [None, {}, {**GRID, "asked": "blue"}, {**GRID, "start": [0, 2]}, {**GRID, "rows": ["..#", "#."]},
     {**GRID, "squares": {"green": [1, 0], "red": [0, 1]}}, {**GRID, "numbers": {"green": 1}}],
)  # fmt: skip
def test_a_task_without_a_grid_is_refused(grid: Any) -> None:
    with pytest.raises(ConfigError, match="holds no grid"):
        GridEnv().reset(options={"task": Task("t", "?", "1", metadata={"grid": grid})})
