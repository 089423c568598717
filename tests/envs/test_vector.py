"""Many episodes at once: the same as Gymnasium's own, and no tool keeps another episode waiting."""

from __future__ import annotations

import decimal
import itertools
import os
import signal
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from trajgym.envs import vector
from trajgym.envs.base import ToolEnv
from trajgym.envs.make import ids
from trajgym.envs.tools import Tool, tool
from trajgym.envs.vector import ToolVectorEnv
from trajgym.errors import ConfigError, EnvironmentFault, EpisodeError, RewardError, UnknownNameError
from trajgym.types import Action, Observation, Step, Task, ToolCall, ToolResult

TASKS = [Task(str(i), f"{i} + 1?", str(i + 1)) for i in range(20)]
TURNS = [
    "#### 3",
    "hm",
    '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>',
    "<tool_call>",
]


def use(name: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'


def of(*tools: Tool, count: int = 3, **options: Any) -> ToolVectorEnv:
    return ToolVectorEnv([lambda: ToolEnv(TASKS, tools=tools, **options)] * count)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("env_id", ["ArithmeticTool-v0", "Memory-v0", "Detour-v0"])
def test_it_is_gymnasiums_own_in_every_mode(env_id: str, mode: AutoresetMode) -> None:
    ours = gymnasium.make_vec(env_id, num_envs=4, autoreset_mode=mode, max_turns=3)
    theirs = gymnasium.make_vec(
        env_id, num_envs=4, vectorization_mode="sync", max_turns=3, vector_kwargs={"autoreset_mode": mode}
    )
    assert type(ours) is ToolVectorEnv
    assert type(theirs) is SyncVectorEnv
    assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
    assert ours.metadata["autoreset_mode"] is mode
    rng = np.random.default_rng(0)
    np.testing.assert_equal(ours.reset(seed=7), theirs.reset(seed=7))
    for _ in range(25):
        actions = tuple(str(rng.choice(TURNS)) for _ in range(4))
        a, b = ours.step(actions), theirs.step(actions)
        np.testing.assert_equal(a, b)
        assert [x.dtype for x in a[1:4]] == [x.dtype for x in b[1:4]]
        over = a[2] | a[3]
        if mode is AutoresetMode.DISABLED and over.any():
            again = [envs.reset(seed=1, options={"reset_mask": over}) for envs in (ours, theirs)]
            np.testing.assert_equal(*again)
    ours.close()
    theirs.close()


def test_pictures_of_different_sizes_stay_what_they_are() -> None:
    envs = gymnasium.make_vec("Grid-v0", num_envs=8)
    singles = [gymnasium.make("Grid-v0") for _ in range(8)]
    alone = [env.reset(seed=i)[1]["image"] for i, env in enumerate(singles)]
    assert len({image.shape for image in alone}) > 1
    for together in (envs.reset(seed=0)[1]["image"], envs.step(["hm"] * 8)[4]["image"]):
        assert together.dtype == object
        for a, b in zip(together, alone, strict=True):
            np.testing.assert_array_equal(a, b)


def test_information_may_be_of_another_kind_in_each_environment() -> None:
    class Telling(gymnasium.Wrapper[str, str, str, str]):
        number = itertools.count()

        def reset(self, **options: Any) -> tuple[str, dict[str, Any]]:
            text, info = super().reset(**options)
            return text, {**info, "x": {"a": 1} if next(self.number) % 2 == 0 else np.array([5, 6])}

    kinds: list[type[SyncVectorEnv]] = [ToolVectorEnv, SyncVectorEnv]
    ours, theirs = (kind([lambda: Telling(ToolEnv(TASKS))] * 2).reset(seed=0)[1]["x"] for kind in kinds)
    np.testing.assert_equal(ours, theirs)


def test_every_id_has_one() -> None:
    for env_id in ids():
        options = {"tasks": TASKS} if env_id.startswith("GSM8K") else {}
        made = gymnasium.make_vec(env_id, num_envs=2, **options)
        assert isinstance(made, ToolVectorEnv)
        assert gymnasium.spec(env_id).to_json()
        made.close()


def test_slow_tools_of_all_episodes_run_at_the_same_time() -> None:
    together = threading.Barrier(40, timeout=60)

    @tool
    def meet() -> str:
        """Wait for all the others."""
        together.wait()
        return "met"

    envs = of(meet, count=41)
    envs.reset(seed=0)
    texts, *_ = envs.step([use("meet")] * 40 + ["#### 3"])
    assert texts[:40] == ("met",) * 40


@pytest.mark.parametrize("quick", [True, False])
def test_only_what_takes_its_time_gets_a_thread(monkeypatch: pytest.MonkeyPatch, quick: bool) -> None:
    threads: list[bool] = []

    @tool
    def where() -> str:
        """Tell."""
        threads.append(threading.current_thread() is threading.main_thread())
        return ""

    monkeypatch.setattr(vector, "_QUICK", 60.0 if quick else 0.0)
    envs = of(where)
    envs.reset(seed=0)
    envs.step([use("where")] * 3)
    assert threads == [False] * 3  # nobody knows it yet
    envs.step([use("where")] * 3)
    assert threads[3:] == [quick] * 3


def test_a_form_of_calls_without_a_name_gets_threads_too() -> None:
    here: list[bool] = []

    @tool(name="python")
    def run(code: str) -> str:
        """Run."""
        here.append(threading.current_thread() is threading.main_thread())
        return code

    envs = of(run, protocol="python_block")
    envs.reset(seed=0)
    texts, *_ = envs.step(["```python\n7\n```", "```python\n8\n```", "#### 1"])
    assert texts == ("7", "8", "")
    assert here == [False, False]


def test_an_error_waits_for_the_others() -> None:
    turns = itertools.count()

    def broken(step: Any, task: Task, history: Any) -> float:
        next(turns)
        return 1 / 0 if "fail" in step.action.text else 1.0

    envs = of(reward={"broken": (broken, 1.0)})
    envs.reset(seed=0)
    with pytest.raises(RewardError, match="ZeroDivisionError") as caught:
        envs.step(["fail", "#### 1", "fail"])
    assert next(turns) == 3
    assert [note[:29] for note in caught.value.__notes__] == [f"In environment {i}: RewardError" for i in (0, 2)]


def test_a_fault_in_a_thread_is_the_callers() -> None:
    @tool
    def lost() -> str:
        """Fail for a reason of ours."""
        raise EnvironmentFault("the network is gone")

    envs = of(lost)
    envs.reset(seed=0)
    with pytest.raises(EnvironmentFault, match="network is gone"):
        envs.step([use("lost"), "hm", "hm"])


def test_what_cannot_be_stepped() -> None:
    for number in (0, -1):
        with pytest.raises(ConfigError, match=f"num_envs must be at least 1, got {number}"):
            gymnasium.make_vec("ArithmeticTool-v0", num_envs=number)
    with pytest.raises(ConfigError, match="at least one environment"):
        ToolVectorEnv([])
    with pytest.raises(UnknownNameError, match="Did you mean 'SameStep'"):
        gymnasium.make_vec("ArithmeticTool-v0", num_envs=1, autoreset_mode="Samestep")
    with pytest.raises(UnknownNameError, match="Did you mean 'difficulty'"):
        gymnasium.make_vec("ArithmeticTool-v0", num_envs=1, dificulty=2)
    with pytest.raises(ConfigError, match="got CartPoleEnv"):
        ToolVectorEnv([lambda: gymnasium.make("CartPole-v1")])  # type: ignore[list-item, return-value]
    envs = of(count=2)
    envs.reset(seed=0)
    assert list(envs.step(iter(["hm", "hm"]))[1]) == [0.0, 0.0]  # type: ignore[arg-type]  # as Gymnasium's own
    envs.reset(seed=0)
    for actions in ("#### 1", ["#### 1"], []):
        with pytest.raises(ConfigError, match="one action for each of 2"):
            envs.step(actions)
    with pytest.raises(ConfigError, match="as a str, got int"):
        envs.step([3, "#### 1"])  # type: ignore[list-item]


def test_an_episode_that_is_over_is_not_stepped_again_where_nobody_resets_it() -> None:
    envs = ToolVectorEnv([lambda: ToolEnv(TASKS)] * 2, autoreset_mode="Disabled")
    envs.reset(seed=0)
    envs.step(["#### 1", "#### 1"])
    with pytest.raises(EpisodeError, match="over"):
        envs.step(["#### 1", "#### 1"])


def test_wrappers_are_stepped_through() -> None:
    class Shout(gymnasium.ActionWrapper[str, str, str]):
        def action(self, action: str) -> str:
            return action.replace("?", "####")

    envs = ToolVectorEnv([lambda: Shout(ToolEnv([TASKS[0]]))] * 2)
    envs.reset(seed=0)
    assert list(envs.step(["? 1", "#### 2"])[1]) == [1.0, 0.0]


def test_a_wrapper_that_makes_something_else_of_text_is_refused() -> None:
    class Length(gymnasium.ObservationWrapper[np.ndarray[Any, Any], str, str]):
        observation_space = gymnasium.spaces.Box(0, 1e6, (1,))

        def observation(self, text: str) -> np.ndarray[Any, Any]:
            return np.array([len(text)], dtype=np.float32)

    with pytest.raises(ConfigError, match=r"a wrapper made it Box.*vectorization_mode='sync'"):
        ToolVectorEnv([lambda: Length(ToolEnv(TASKS))])  # type: ignore[list-item, return-value]


def test_what_can_be_gone_through_once_serves_all() -> None:
    call = use("calculator").replace("{}", '{"expression": "1+1"}')
    tools = (name for name in ("calculator",))
    envs = gymnasium.make_vec("ArithmeticTool-v0", num_envs=3, tools=tools)
    envs.reset(seed=0)
    assert envs.step([call] * 3)[0] == ("2",) * 3


def test_after_ctrl_c_no_further_turn_begins() -> None:
    begun: list[int] = []
    all_threads, go_on = threading.Semaphore(0), threading.Event()

    @tool
    def stay() -> str:
        """Wait."""
        begun.append(1)
        all_threads.release()
        go_on.wait(60)
        return "late"

    def press() -> None:
        for _ in range(vector._MOST_THREADS):
            all_threads.acquire(timeout=60)
        os.kill(os.getpid(), signal.SIGINT)

    envs = of(stay, count=vector._MOST_THREADS + 50)
    envs.reset(seed=0)
    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        envs.step([use("stay")] * envs.num_envs)
    pressing.join()
    go_on.set()
    for thread in threading.enumerate():
        if thread.name.startswith("trajgym-tool"):
            thread.join(60)
    assert len(begun) == vector._MOST_THREADS


def test_a_turn_that_ctrl_c_left_at_work_does_not_reach_the_next_episode() -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()

    @tool
    def stay() -> str:
        """Wait."""
        begun.release()
        go_on.wait(60)
        return "late"

    def press() -> None:
        for _ in range(2):  # no thread may be between its making and its start, where it cannot be waited for
            begun.acquire(timeout=60)
        os.kill(os.getpid(), signal.SIGINT)

    envs = of(stay, count=2)
    envs.reset(seed=0)
    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        envs.step([use("stay")] * 2)
    pressing.join()
    envs.reset(seed=1)
    go_on.set()
    for thread in threading.enumerate():
        if thread.name.startswith("trajgym-tool"):
            thread.join(60)
    assert envs.call("messages") == tuple(ToolEnv(TASKS, tools=[stay]).reset(seed=1 + i)[1]["messages"] for i in (0, 1))


def test_after_an_error_the_others_go_on() -> None:
    fail = [True]

    @tool
    def net() -> str:
        """Fail once."""
        if fail.pop():
            raise EnvironmentFault("gone")
        return "there"

    envs = of(net)
    envs.reset(seed=0)
    with pytest.raises(EnvironmentFault, match="gone"):
        envs.step([use("net"), "#### 1", "hm"])
    fail += [False] * 3
    envs.reset(seed=0, options={"reset_mask": np.array([True, False, False])})
    texts, _, terminated, *_ = envs.step([use("net"), "this one begins anew", use("net")])
    assert texts[0] == "there"
    assert all("+ 1?" in text for text in texts[1:])  # both had answered
    assert not terminated.any()


def test_one_quick_call_does_not_make_a_slow_tool_quick() -> None:
    envs = of(count=1)
    for seconds in (0.3, 0.3, 0.0):
        result = ToolResult(ToolCall("search"), "", seconds=seconds)
        envs._learn({"step": Step(Action(""), Observation(), results=(result,))})
    assert envs._seconds["search"] > vector._QUICK
    for _ in range(100):
        result = ToolResult(ToolCall("search"), "", seconds=1e-5)
        envs._learn({"step": Step(Action(""), Observation(), results=(result,))})
    assert envs._seconds["search"] < vector._QUICK


def test_a_thread_has_the_callers_context() -> None:
    @tool
    def third() -> str:
        """Divide."""
        return str(decimal.Decimal(1) / 3)

    envs = of(third)
    envs.reset(seed=0)
    with decimal.localcontext(prec=3):
        assert envs.step([use("third")] * 3)[0] == ("0.333",) * 3


def test_people_see_turns_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    together = threading.Barrier(2)

    @tool
    def late() -> str:
        """Would wait for another thread, if there were one."""
        return str(together.n_waiting)

    envs = of(late, render_mode="human")
    envs.reset(seed=0)
    capsys.readouterr()
    envs.step([use("late"), use("late"), "#### 77"])
    shown = capsys.readouterr().out
    assert shown.rindex("late") < shown.index("77")
