"""Killed at any moment and resumed: the uninterrupted run, bit for bit."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import train

CODE = """
import itertools, json, os, signal, sys
sys.path.insert(0, {tests!r})
import conftest, torch
from trajgym.policies.hf import HFSampler
from trajgym.trainers import runfolder
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import train

def die_at(owner, name, count, *, after, last_words=lambda *args: None):
    calls, real = itertools.count(1), getattr(owner, name)

    def counted(*args, **kwargs):
        last = next(calls) == count
        result = real(*args, **kwargs) if after or not last else None
        if last:
            last_words(*args)
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, counted)

def halve(state, path):
    os.truncate(path, os.path.getsize(path) // 2)

moment, count, after = {moment!r}
if moment == "rollout":
    die_at(HFSampler, "step", count, after=after)
elif moment == "update":
    die_at(torch.optim.AdamW, "step", count, after=after)
elif moment == "half a checkpoint":
    die_at(torch, "save", count, after=True, last_words=halve)
elif moment == "a checkpoint without its name":
    die_at(runfolder, "_sync", 2 * count - 1, after=after)
elif moment == "a checkpoint beside too many":
    die_at(runfolder, "_sync", 2 * count, after=after)
print("ready", flush=True)
train(load_config(json.loads({options!r})))
"""

# The same run in six shapes: what is kept between updates differs.
SHAPES: dict[str, dict[str, Any]] = {
    "full": {"kl_coef": 0.02, "lr_schedule": "linear"},
    "bfloat16": {"dtype": "bfloat16", "kl_coef": 0.02, "kl_control": "auto", "minibatches": 2},
    "lora": {"use_lora": True, "lora_targets": ["q_proj", "v_proj"], "advantage_scale": "ema_std"},
    "ppo": {"algorithm": "ppo", "minibatches": 2},
    "ahead": {"rollout_ahead": 1, "sampler_correction": True, "kl_coef": 0.02, "minibatches": 2},
    "vine": {"estimator": "vine", "vine_rollouts": 2, "env": "TestTwice-v0", "max_episode_tokens": 48},
}
# Where a process kills itself: in the n-th call of something, before or after it was done, n up to this.
MOMENTS = {
    "rollout": 50,
    "update": 8,
    "half a checkpoint": 6,
    "a checkpoint without its name": 6,
    "a checkpoint beside too many": 6,
}


def start(options: dict[str, Any], moment: tuple[str, int, bool] = ("", 0, False)) -> subprocess.Popen[str]:
    code = CODE.format(tests=str(Path(__file__).parent), options=json.dumps(options), moment=moment)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line == "ready\n":
            return process
    raise AssertionError("the run did not start")


def updates_of(folder: Path) -> int:
    log = folder / "metrics.jsonl"
    return log.read_text().count("\n") if log.exists() else 0


def kill_by_the_clock(process: subprocess.Popen[str], folder: Path, rng: random.Random) -> None:
    """Kill it some updates from now; some fall before the first of the process, some between two of its writes."""
    target = updates_of(folder) + rng.randint(0, 6)
    while process.poll() is None and updates_of(folder) < target:
        time.sleep(0.002)
    time.sleep(rng.uniform(0.0, 0.2))
    process.send_signal(signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_kills_at_random_moments_leave_no_trace(
    identity_options: dict[str, Any], shape: str, check_same: Callable[[Path, Path], None]
) -> None:
    """SIGKILL anywhere: twice by the clock, and in a rollout, in an update, and while a checkpoint is written."""
    options = {**identity_options, **SHAPES[shape], "updates": 30, "save_every": 1}
    whole = train(load_config({**options, "name": "whole"}))
    rng = random.Random(shape)
    killed = whole.with_name("killed")
    kills = ["clock", "clock", *MOMENTS]
    rng.shuffle(kills)
    for kind in [*kills, "none"]:
        begun = any((killed / "checkpoints").glob("update-*[0-9]"))
        extra = {"resume": True} if begun else {"overwrite": killed.exists()}
        moment = (kind, rng.randint(1, MOMENTS.get(kind, 1)), rng.random() < 0.5)
        process = start({**options, "name": "killed", **extra}, moment)
        if kind == "clock":
            kill_by_the_clock(process, killed, rng)
        output = process.communicate()[0]
        # It had not ended by itself, but for the last one.
        assert process.returncode == (0 if kind == "none" else -signal.SIGKILL), output
        half_done = list((killed / "checkpoints").glob("*.partial"))
        assert half_done or kind not in ("half a checkpoint", "a checkpoint without its name")
        print(shape, moment, updates_of(killed))
    check_same(killed, whole)
    assert not list((killed / "checkpoints").glob("*.partial"))


@pytest.mark.slow
def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(identity_options: dict[str, Any]) -> None:
    options = {**identity_options, "updates": 400, "save_every": 1, "name": "killed"}
    folder = Path(identity_options["output_dir"]) / "killed" / "checkpoints"
    process = start(options)
    deadline = time.monotonic() + 120
    caught = False
    while not caught and time.monotonic() < deadline and process.poll() is None:
        caught = any(folder.glob("*.partial")) and len(list(folder.glob("update-*[0-9]"))) > 0
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert caught
    before = sorted(p.name for p in folder.glob("update-*[0-9]"))[-1]
    done = int(before.removeprefix("update-"))
    resumed = start({**options, "updates": done + 2, "resume": True})
    output = resumed.communicate(timeout=300)[0]
    assert resumed.returncode == 0, output
    assert sorted(p.name for p in folder.iterdir())[-1] == f"update-{done + 2:06d}"
