"""Runs whose episodes real workers play, processes that Ray has started: where Ray is installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
import pytest

from trajgym.envs.tools import register_tool, tool
from trajgym.envs.tools.base import TOOLS, get_tool
from trajgym.errors import ConfigError, RewardError
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import train
from trajgym.trainers.workers import WorkersLost

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'trajgym[ray]'")

pytestmark = pytest.mark.slow

LIMIT = 300.0  # seconds until processes that should go are said to have stayed


@pytest.fixture(scope="module", autouse=True)
def _by_value() -> Iterator[None]:
    """Send what this file and its conftest define as code: workers cannot import them."""
    modules = {sys.modules[__name__], sys.modules[gymnasium.registry["TestIdentity-v0"].entry_point.__module__]}  # type: ignore[union-attr]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Ray on this machine, started by somebody else than the runs."""
    before = signal.getsignal(signal.SIGTERM)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(address="local", num_cpus=3, include_dashboard=False, logging_level="WARNING")
    signal.signal(signal.SIGTERM, before)
    yield
    ray.shutdown()


def _doubled(step: Any, task: Any, history: Any) -> float:
    """Pays by a tool that was registered where the run was started, and dies once where a file says so."""
    mark = os.environ.get("TRAJGYM_TEST_DIES", "")
    if mark and os.getpid() != int(os.environ["TRAJGYM_TEST_TRAINER"]):
        how, _, path = mark.partition(":")
        try:
            Path(path).open("x").close()
        except FileExistsError:
            if how == "once":
                mark = ""
        if mark:
            os.kill(os.getpid(), signal.SIGKILL)
    double: Any = get_tool("double").target
    return float(step.action.text.startswith(task.answer)) * double(0.5)


@pytest.fixture
def options(identity_options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    @tool
    def double(number: float) -> float:
        """Double a number.

        Args:
            number: Any.
        """
        return 2 * number

    register_tool(double)
    kwargs = {"reward": {"accuracy": (_doubled, 1.0)}}
    yield {**identity_options, "env_kwargs": kwargs, "kl_coef": 0.02, "log_trajectories": 99}
    del TOOLS._items["double"]


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAJGYM_TEST_TRAINER", str(os.getpid()))


def test_two_workers_one_of_which_is_killed(
    cluster: None,
    marked: None,
    options: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    check_same: Callable[[Path, Path], None],
) -> None:
    one = train(load_config({**options, "rollout_workers": 1, "name": "one"}))
    monkeypatch.setenv("TRAJGYM_TEST_DIES", f"once:{tmp_path / 'dead'}")
    killed = train(load_config({**options, "rollout_workers": 2, "name": "killed"}))
    check_same(one, killed)
    first = json.loads((killed / "metrics.jsonl").read_text().splitlines()[0])
    assert first["faults/RolloutWorker"] == 1.0
    assert "A new one takes its place" in capfd.readouterr().out
    assert ray.is_initialized()  # whoever has connected to it may go on


def test_two_and_three_workers(
    cluster: None, options: dict[str, Any], check_same: Callable[[Path, Path], None]
) -> None:
    two, three = (train(load_config({**options, "rollout_workers": n, "name": f"{n}"})) for n in (2, 3))
    check_same(two, three)


def test_workers_that_die_again_and_again(
    cluster: None, marked: None, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAJGYM_TEST_DIES", f"always:{tmp_path / 'dead'}")
    with pytest.raises(WorkersLost, match="2 in a row died"):
        train(load_config({**options, "rollout_workers": 1, "fault_limit": 2}))


def test_another_address_where_there_is_a_connection(cluster: None, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="connected to Ray already"):
        train(load_config({**options, "rollout_workers": 1, "ray_address": "127.0.0.1:6379"}))


def _unknown(step: Any, task: Any, history: Any) -> float:
    raise ValueError("a bug of somebody's")


def test_mistakes_come_back_as_what_they_are(cluster: None, options: dict[str, Any]) -> None:
    kwargs = {"reward": {"wrong": (_unknown, 1.0)}}
    with pytest.raises(RewardError, match="a bug of somebody's"):
        train(load_config({**options, "rollout_workers": 1, "env_kwargs": kwargs}))


class Called(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Calls both tools before each episode, whatever the policy does in it."""

    def reset(self, **kwargs: Any) -> Any:
        super().reset(**kwargs)
        calls = (("python", {"code": "print(6 * 7)"}), ("double", {"number": 21.0}))
        text = "".join(f"<tool_call>{json.dumps({'name': n, 'arguments': a})}</tool_call>" for n, a in calls)
        answer = self.env.step(text)[0]
        if answer.split() != ["42", "42.0"]:
            raise OSError(answer)
        return super().reset(**kwargs)


def _called(**kwargs: Any) -> Any:
    return Called(gymnasium.make("ArithmeticTool-v0", tools=["python", "double"], **kwargs).unwrapped)


def test_tools_work_in_workers(cluster: None, options: dict[str, Any], left_behind: Callable[[Path], Any]) -> None:
    gymnasium.register("TestCalled-v0", entry_point=_called)
    size = {"updates": 1, "groups_per_update": 2, "num_generations": 2, "max_turn_tokens": 8, "max_episode_tokens": 999}
    mine = {"model": "tiny", "env": "TestCalled-v0", "env_kwargs": {}, "rollout_workers": 1}
    try:
        folder = train(load_config({**options, **size, **mine}))
    finally:
        del gymnasium.registry["TestCalled-v0"]
    (played,) = left_behind(folder)[2]
    assert [t.fault for t in played] == [None] * 4


CODE = """
import json, os, sys
sys.path.insert(0, {tests!r})
import conftest, cloudpickle
from trajgym.trainers import player, ray_player
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import train
cloudpickle.register_pickle_by_value(conftest)
real = ray_player.WorkersPlayer._round
def played(self, update, round, interrupt):
    share = real(self, update, round, interrupt)
    print("played", update, flush=True)
    return share
ray_player.WorkersPlayer._round = played
train(load_config(json.loads({options!r})))
"""


def start(options: dict[str, Any], mark: str) -> subprocess.Popen[str]:
    code = CODE.format(tests=str(Path(__file__).parent), options=json.dumps(options))
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TRAJGYM_TEST_MARK": mark},
        start_new_session=True,  # a terminal's Ctrl-C goes to all processes of its session's foreground
    )


def read_until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return
    raise AssertionError("".join(seen))


def with_mark(mark: str) -> set[int]:
    """Return the processes that run with a variable of that value."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                variables = (folder / "environ").read_bytes()
            except OSError:
                continue
            if state != "Z" and f"TRAJGYM_TEST_MARK={mark}".encode() in variables:
                found.add(int(folder.name))
    return found


def wait_until_gone(mark: str) -> None:
    end = time.monotonic() + LIMIT
    while (left := with_mark(mark)) and time.monotonic() < end:
        time.sleep(0.5)
    assert not left, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]


def test_ctrl_c_and_a_killed_trainer_leave_no_process(
    identity_options: dict[str, Any], check_same: Callable[[Path, Path], None]
) -> None:
    options = {**identity_options, "updates": 100, "rollout_workers": 2, "name": "cut"}
    mark = uuid.uuid4().hex
    process = start(options, mark)
    read_until(process, "played 1")
    assert len(with_mark(mark)) > 3  # this test can see them
    os.killpg(process.pid, signal.SIGINT)
    text, _ = process.communicate(timeout=LIMIT)
    assert "Go on with the same command and --resume" in text
    wait_until_gone(mark)

    process = start({**options, "resume": True}, mark)
    read_until(process, "played")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=LIMIT)
    wait_until_gone(mark)

    # What is left goes on to the end, as the run that nobody has disturbed.
    done = int(
        json.loads((Path(options["output_dir"]) / "cut" / "metrics.jsonl").read_text().splitlines()[-1])["update"]
    )
    process = start({**options, "resume": True, "updates": done + 2}, mark)
    text, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, text
    undisturbed = start({**options, "updates": done + 2, "name": "whole"}, mark)
    text, _ = undisturbed.communicate(timeout=LIMIT)
    assert undisturbed.returncode == 0, text
    check_same(Path(options["output_dir"]) / "cut", Path(options["output_dir"]) / "whole")
    wait_until_gone(mark)


def test_more_gpus_than_this_machine_has(options: dict[str, Any]) -> None:
    if ray.is_initialized():
        ray.shutdown()
    with pytest.raises(ConfigError, match=r"1 rollout workers ask for 64 GPUs, and this machine has \d+\."):
        train(load_config({**options, "rollout_workers": 1, "worker_gpus": 64}))
    assert not ray.is_initialized()


def test_an_address_where_nobody_is(options: dict[str, Any]) -> None:
    if ray.is_initialized():
        ray.shutdown()
    with pytest.raises(ConfigError, match="ray_address 'auto'"):
        train(load_config({**options, "rollout_workers": 1, "ray_address": "auto"}))
    with pytest.raises(ConfigError, match="goes through a proxy"):
        train(load_config({**options, "rollout_workers": 1, "ray_address": "ray://127.0.0.1:10001", "name": "proxy"}))
