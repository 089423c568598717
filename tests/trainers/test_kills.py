"""Killed at any moment and resumed: the uninterrupted run, bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from trajgym.evaluation.records import read_trajectories
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import train

CODE = """
import json, sys
sys.path.insert(0, {tests!r})
import conftest
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import train
print("ready", flush=True)
train(load_config(json.loads({options!r})))
"""

# The same run in four shapes: what is kept between updates differs.
SHAPES: dict[str, dict[str, Any]] = {
    "full": {"kl_coef": 0.02, "lr_schedule": "linear"},
    "lora": {"use_lora": True, "lora_targets": ["q_proj", "v_proj"], "advantage_scale": "ema_std"},
    "ppo": {"algorithm": "ppo", "minibatches": 2},
    "vine": {"estimator": "vine", "vine_rollouts": 2, "env": "TestTwice-v0", "max_episode_tokens": 48},
}


def start(options: dict[str, Any]) -> subprocess.Popen[str]:
    code = CODE.format(tests=str(Path(__file__).parent), options=json.dumps(options))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line == "ready\n":
            return process
    raise AssertionError("the run did not start")


def updates_of(folder: Path) -> int:
    log = folder / "metrics.jsonl"
    return log.read_text().count("\n") if log.exists() else 0


def left_behind(folder: Path) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor], list[Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    metrics = [
        {k: v for k, v in json.loads(line).items() if not k.startswith(("time/", "efficiency/", "memory/"))}
        for line in lines
    ]
    newest = sorted((folder / "checkpoints").glob("update-*"))[-1]
    weights = load_file(next((newest / "model").glob("*.safetensors")))
    played = [read_trajectories(path) for path in sorted((folder / "trajectories").glob("update-*.jsonl"))]
    return metrics, weights, played


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_kills_at_random_moments_leave_no_trace(identity_options: dict[str, Any], shape: str) -> None:
    """Three SIGKILLs per run, anywhere: in a rollout, in an update, while a checkpoint is written."""
    options = {**identity_options, **SHAPES[shape], "updates": 30, "save_every": 1}
    whole = train(load_config({**options, "name": "whole"}))
    rng = random.Random(shape)
    killed = whole.with_name("killed")
    kills = 0
    for _ in range(10):
        begun = (killed / "config.yaml").exists() and any((killed / "checkpoints").glob("update-*[0-9]"))
        extra = {"resume": True} if begun else {"overwrite": killed.exists()}
        process = start({**options, "name": "killed", **extra})
        if kills < 3:
            # Some fall before the first update of the process, some between two of its writes.
            target = updates_of(killed) + rng.randint(0, 6)
            while process.poll() is None and updates_of(killed) < target:
                time.sleep(0.002)
            time.sleep(rng.uniform(0.0, 0.2))
            process.send_signal(signal.SIGKILL)
            output = process.communicate()[0]
            assert process.returncode == -signal.SIGKILL, output  # it had not ended by itself
            kills += 1
            continue
        output = process.communicate()[0]
        assert process.returncode == 0, output
        break
    else:
        raise AssertionError("never finished")
    metrics, weights, played = left_behind(killed)
    want_metrics, want_weights, want_played = left_behind(whole)
    assert metrics == want_metrics
    assert weights.keys() == want_weights.keys()
    assert all(torch.equal(weights[k], want_weights[k]) for k in want_weights)
    assert played == want_played
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
