"""Two processes train what one would have trained, lose nothing silently, and never wait for ever."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import train
from trajgym.trainers.ranks import Ranks

DEAD = """
real = ToolEnv.reset
def reset(self, **kwargs):
    if rank == 1:
        raise OSError("no room on this machine")
    return real(self, **kwargs)
ToolEnv.reset = reset
"""

AT_UPDATE_1 = """
real = grpo.GRPOTrainer.gather
def gather(self, interrupt):
    if rank == 1 and self.update == 1:
        {what}
    return real(self, interrupt)
grpo.GRPOTrainer.gather = gather
"""


IN_ROUND_1 = """
from trajgym.trainers.player import Player
real = Player._round
def played(self, update, round, interrupt):
    if rank == 1 and update == 1:
        {what}
    return real(self, update, round, interrupt)
Player._round = played
"""


def outputs(processes: list[subprocess.Popen[str]]) -> list[str]:
    return [process.communicate(timeout=300)[0] for process in processes]


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if not k.startswith(("time/", "efficiency/", "memory/"))}
        for line in lines
    ]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    newest = sorted((folder / "checkpoints").glob("update-*"))[-1]
    return load_file(next((newest / "model").glob("*.safetensors")))


def check_same(two: Path, one: Path) -> None:
    for left, right in zip(metrics(two), metrics(one), strict=True):
        # The first state of a task that both ranks play is valued on each of them.
        assert left.pop("env_steps") >= right.pop("env_steps")
        assert left == pytest.approx(right, rel=1e-4, abs=1e-6)
    a, b = weights(two), weights(one)
    for k in b:
        torch.testing.assert_close(a[k], b[k], atol=1e-6, rtol=1e-5, msg=k)


@pytest.mark.parametrize(
    "options",
    [
        # Five groups, which do not divide evenly, in steps of unequal size, with a KL and a spread of earlier updates.
        {
            "groups_per_update": 5,
            "minibatches": 2,
            "kl_coef": 0.05,
            "advantage_scale": "ema_std",
            "env": "TestTwice-v0",
        },
        {"algorithm": "ppo", "kl_form": "k1_in_reward", "kl_coef": 0.05, "groups_per_update": 3, "value_epochs": 2},
        {"estimator": "vine", "vine_rollouts": 2, "env": "TestTwice-v0", "groups_per_update": 3, "dynamic_sampling": 0},
    ],
    ids=["grpo", "ppo", "vine"],
)
def test_two_ranks_train_what_one_would(
    launch: Callable[..., list[subprocess.Popen[str]]], identity_options: dict[str, Any], options: dict[str, Any]
) -> None:
    options = {**options, "updates": 3, "max_episode_tokens": 48, "microbatch_tokens": 60}
    processes = launch(name="two", **options)
    first, second = outputs(processes)
    assert [p.returncode for p in processes] == [0, 0], first + second
    assert "3/3" in first
    assert "3/3" not in second  # one of them speaks
    one = train(load_config({**identity_options, **options, "name": "one"}))
    check_same(one.with_name("two"), one)


def test_environments_that_are_dead_on_one_rank(
    launch: Callable[..., list[subprocess.Popen[str]]], identity_options: dict[str, Any]
) -> None:
    processes = launch(DEAD, name="half", updates=2)
    texts = outputs(processes)
    assert [p.returncode for p in processes] == [0, 0], "".join(texts)
    lines = metrics(Path(identity_options["output_dir"]) / "half")
    assert [m["fault_share"] for m in lines] == [0.5, 0.5]
    assert [m["groups"] for m in lines] == [2.0, 2.0]
    assert all(m["grad_norm"] > 0 for m in lines)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            'raise RewardError("the judge is gone")',
            r"Rank 1 of 2 failed, so all stop. There: RewardError: the judge is gone",
        ),
        ("os.kill(os.getpid(), signal.SIGKILL)", "waited for the others in vain"),
        pytest.param("time.sleep(600)", r"Ranks? 1", marks=pytest.mark.slow),
    ],
    ids=["error", "killed", "hangs"],
)
def test_a_rank_that_fails_ends_the_run_with_its_name(
    launch: Callable[..., list[subprocess.Popen[str]]], identity_options: dict[str, Any], what: str, message: str
) -> None:
    # What is raised where work is shared, the others hear of.
    extra = (IN_ROUND_1 if what.startswith("raise") else AT_UPDATE_1).format(what=what)
    processes = launch(extra, name="lost", updates=50, rank_deadline=20.0)
    start = time.monotonic()
    text = processes[0].communicate(timeout=200)[0]
    assert processes[0].returncode not in (0, None)
    assert re.search(message, text), text
    assert time.monotonic() - start < 150
    folder = Path(identity_options["output_dir"]) / "lost"
    assert len(metrics(folder)) == 1
    assert [p.name for p in (folder / "checkpoints").iterdir()] == ["update-000001"]  # rescued


@pytest.mark.slow
def test_ctrl_c_on_one_rank_stops_both(
    launch: Callable[..., list[subprocess.Popen[str]]], identity_options: dict[str, Any]
) -> None:
    processes = launch(name="stopped", updates=500, save_every=1000)
    folder = Path(identity_options["output_dir"]) / "stopped"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if (folder / "metrics.jsonl").exists() and len((folder / "metrics.jsonl").read_text().splitlines()) >= 3:
            break
        time.sleep(0.05)
    processes[1].send_signal(signal.SIGINT)
    texts = outputs(processes)
    assert all("--resume" in text for text in texts), texts
    done = len(metrics(folder))
    assert (folder / "checkpoints" / f"update-{done:06d}" / "trainer.pt").is_file()


def test_one_process_is_a_world_of_its_own() -> None:
    ranks = Ranks(cpu=True, deadline=1.0)
    assert (ranks.count, ranks.rank, ranks.main) == (1, 0, True)
    assert ranks.together(lambda: 3) == [3]
    assert ranks.mine([1, 2, 3]) == [1, 2, 3]
    weight = torch.nn.Parameter(torch.ones(2))
    ranks.add_gradients([weight])
    assert weight.grad is None
    assert ranks.total({"loss": 2.0}) == {"loss": 2.0}


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_shares_come_back_in_order(count: int) -> None:
    ranks = Ranks(cpu=True, deadline=1.0)
    for size in range(8):
        items: list[int | None] = [None if i == 2 else i for i in range(size)]
        assert ranks.merged([items[rank::count] for rank in range(count)]) == items
