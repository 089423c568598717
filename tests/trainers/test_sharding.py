"""Two processes that keep half of every weight train what one process with all of them would have trained."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from trajgym.errors import ConfigError
from trajgym.trainers.config import GRPOConfig, load_config
from trajgym.trainers.grpo import GRPOTrainer, train
from trajgym.trainers.ranks import Ranks
from trajgym.trainers.sharding import Shards

Launch = Callable[..., list[subprocess.Popen[str]]]

FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}

# Weights are gathered once for a rollout (two blocks and what is around them), and divided before and after it; ranks
# with fewer micro-batches than others go through passes for nothing.
WATCHED = """
import atexit
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as groups
from torch.distributed.tensor import DTensor
from trajgym.trainers.learner import Learner
gathers = idle = 0
def counted(*args, real=groups.foreach_all_gather, **kwargs):
    global gathers
    gathers += 1
    return real(*args, **kwargs)
groups.foreach_all_gather = counted
def gather(self, interrupt, real=grpo.GRPOTrainer.gather):
    before = gathers
    assert all(isinstance(p, DTensor) for p in self.learner.model.parameters())
    played = real(self, interrupt)
    assert all(isinstance(p, DTensor) for p in self.learner.model.parameters())
    assert gathers == before + 3, gathers - before
    return played
grpo.GRPOTrainer.gather = gather
def forward(self, known, *args, real=Learner._forward):
    global idle
    idle += known is None
    return real(self, known, *args)
Learner._forward = forward
atexit.register(lambda: print(f"{idle} passes for nothing"))
"""

DEAD = """
def reset(self, real=ToolEnv.reset, **kwargs):
    if rank == 1:
        raise OSError("no room on this machine")
    return real(self, **kwargs)
ToolEnv.reset = reset
"""

IN_A_PASS = """
import torch
from trajgym.errors import TrainingError
from trajgym.trainers import learner
calls = 0
def logprobs(*args, real=learner.token_logprobs):
    global calls
    calls += torch.is_grad_enabled()
    if rank == 1 and calls == 3 and torch.is_grad_enabled():
        {what}
    return real(*args)
learner.token_logprobs = logprobs
"""


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    clock = ("time/", "efficiency/", "memory/")
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(clock)} for line in lines]


def checkpoint(folder: Path) -> Path:
    return sorted((folder / "checkpoints").glob("update-*"))[-1]


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def finish(processes: list[subprocess.Popen[str]]) -> list[str]:
    texts = [process.communicate(timeout=300)[0] for process in processes]
    assert [p.returncode for p in processes] == [0, 0], "".join(texts)
    return texts


def options_in(file: Path) -> Any:
    """Read a file of JSON; peft writes the elements of a set, in any order."""
    values = json.loads(file.read_text())
    return {k: sorted(v) if k == "target_modules" else v for k, v in values.items()}


def check_same(two: Path, one: Path) -> None:
    """Compare two runs: their numbers, and every file of their last checkpoints."""
    for left, right in zip(metrics(two), metrics(one), strict=True):
        assert left == pytest.approx(right, rel=1e-4, abs=1e-6)
    a, b = checkpoint(two), checkpoint(one)
    files = [sorted(str(p.relative_to(c)) for p in c.rglob("*")) for c in (a, b)]
    assert files[0] == files[1]
    for name in (n for n in files[0] if n.startswith("model/") and n.endswith(".json")):
        assert options_in(a / name) == options_in(b / name), name
    (weights,) = (n for n in files[0] if n.endswith(".safetensors"))
    left, right = load_file(a / weights), load_file(b / weights)
    assert left.keys() == right.keys()
    for name in right:
        torch.testing.assert_close(left[name], right[name], atol=1e-6, rtol=1e-5, msg=name)
    moments = [torch.load(c / "trainer.pt", weights_only=True)["optimizer"] for c in (a, b)]
    assert moments[0]["param_groups"] == moments[1]["param_groups"]
    for index, state in moments[1]["state"].items():
        torch.testing.assert_close(moments[0]["state"][index], state, atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        # Five groups in steps of unequal size, cut so small that ranks get unequal numbers of micro-batches.
        ({"groups_per_update": 5, "minibatches": 2, "kl_coef": 0.05, "inner_epochs": 2, "env": "TestTwice-v0"}, {}),
        slow({"kl_coef": 0.05, "use_lora": True, "lora_rank": 4, "max_grad_norm": 0.01}, {}),
        slow({"kl_form": "k1_in_reward", "kl_coef": 0.05, "gradient_checkpointing": True}, {}),
        slow({"dynamic_sampling": 2, "weight_decay": 0.1}, {"FSDP_RESHARD_AFTER_FORWARD": "false"}),
    ],
    ids=["full", "lora", "recomputed", "kept"],
)
def test_two_ranks_train_what_one_would(
    launch: Launch, identity_options: dict[str, Any], options: dict[str, Any], variables: dict[str, str]
) -> None:
    options = {**options, "updates": 3, "max_episode_tokens": 48, "microbatch_tokens": 60}
    said = finish(launch(WATCHED, variables=FSDP | variables, name="two", **options))
    idle = [int(n) for text in said for n in re.findall(r"(\d+) passes for nothing", text)]
    assert len(idle) == 2
    assert sum(idle) > 0
    one = train(load_config({**identity_options, **options, "name": "one"}))
    check_same(one.with_name("two"), one)


@pytest.mark.slow
def test_a_run_goes_on_with_divided_or_whole_weights(launch: Launch, identity_options: dict[str, Any]) -> None:
    options = {"kl_coef": 0.05, "save_every": 1, "keep_checkpoints": 9}
    finish(launch(variables=FSDP, name="whole", updates=3, **options))
    finish(launch(variables=FSDP, name="halves", updates=1, **options))
    runs = Path(identity_options["output_dir"])
    shutil.copytree(runs / "halves", runs / "one")
    finish(launch(variables=FSDP, name="halves", updates=3, resume=True, **options))
    # Bit for bit what would have come of it without the interruption.
    assert metrics(runs / "halves") == metrics(runs / "whole")
    a, b = (load_file(checkpoint(runs / name) / "model" / "model.safetensors") for name in ("halves", "whole"))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    # One process reads the same checkpoint, and goes on with all of every weight.
    check_same(
        runs / "whole", train(load_config({**identity_options, **options, "name": "one", "updates": 3, "resume": True}))
    )


@pytest.mark.slow
def test_adapters_in_float32_above_weights_in_bfloat16(launch: Launch, identity_options: dict[str, Any]) -> None:
    finish(launch(variables=FSDP, name="mixed", use_lora=True, lora_rank=4, dtype="bfloat16", kl_coef=0.05))
    runs = Path(identity_options["output_dir"])
    assert all(m["grad_norm"] > 0 and m["skipped_steps"] == 0 for m in metrics(runs / "mixed"))
    adapters = load_file(checkpoint(runs / "mixed") / "model" / "adapter_model.safetensors")
    assert {value.dtype for value in adapters.values()} == {torch.float32}
    assert all(bool(value.any()) for value in adapters.values())  # B began at zero


def masters(folder: Path) -> list[torch.Tensor]:
    """Return the float32 weights that the optimiser moves, one after another."""
    state = torch.load(checkpoint(folder) / "trainer.pt", weights_only=True)["optimizer"]["state"]
    return [state[index]["master"] for index in sorted(state)]


@pytest.mark.slow
def test_weights_in_bfloat16_with_divided_copies_in_float32(launch: Launch, identity_options: dict[str, Any]) -> None:
    """Steps too small for bfloat16 add up in the copies, as in one process, and survive an interruption to the bit."""
    options: dict[str, Any] = {
        "dtype": "bfloat16", "kl_coef": 0.05, "learning_rate": 1e-5, "minibatches": 2, "save_every": 1,
        "keep_checkpoints": 9,
    }  # fmt: skip
    finish(launch(variables=FSDP, name="whole", updates=3, **options))
    finish(launch(variables=FSDP, name="halves", updates=1, **options))
    finish(launch(variables=FSDP, name="halves", updates=3, resume=True, **options))
    runs = Path(identity_options["output_dir"])
    assert metrics(runs / "halves") == metrics(runs / "whole")
    weights, again = (load_file(checkpoint(runs / n) / "model" / "model.safetensors") for n in ("whole", "halves"))
    assert {value.dtype for value in weights.values()} == {torch.bfloat16}
    assert all(torch.equal(again[name], value) for name, value in weights.items())
    copies = masters(runs / "whole")
    assert {value.dtype for value in copies} == {torch.float32}
    assert all(map(torch.equal, copies, masters(runs / "halves")))
    one = GRPOTrainer(load_config({**identity_options, **options, "name": "one", "updates": 3}))
    start = [p.detach().float() for p in one.learner.model.parameters()]
    alone = masters(one.run())
    way = sum(float((a - b).norm() ** 2) for a, b in zip(alone, start, strict=True)) ** 0.5
    apart = sum(float((a - b).norm() ** 2) for a, b in zip(alone, copies, strict=True)) ** 0.5
    assert way > 0
    assert apart < 0.2 * way  # gradients of one micro-batch are added in 16 bits over ranks


@pytest.mark.slow
def test_environments_that_are_dead_on_one_rank(launch: Launch, identity_options: dict[str, Any]) -> None:
    finish(launch(DEAD, variables=FSDP, name="half", kl_coef=0.05, microbatch_tokens=60))
    lines = metrics(Path(identity_options["output_dir"]) / "half")
    assert [(m["fault_share"], m["groups"]) for m in lines] == [(0.5, 2.0)] * 2
    assert all(m["grad_norm"] > 0 for m in lines)


@pytest.mark.slow
def test_numbers_that_are_none_on_one_rank_cost_a_step_of_all(launch: Launch, identity_options: dict[str, Any]) -> None:
    extra = IN_A_PASS.format(what='real(*args); raise TrainingError("no number")')
    finish(launch(extra, variables=FSDP, name="skips", updates=4, microbatch_tokens=60))
    skipped = [m["skipped_steps"] for m in metrics(Path(identity_options["output_dir"]) / "skips")]
    assert sum(skipped) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ('raise MemoryError("no room for activations")', "Rank 1 says: MemoryError: no room for activations"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "Rank 1 says nothing"),
        ("time.sleep(600)", "Rank 1 says nothing"),
    ],
    ids=["error", "killed", "hangs"],
)
def test_a_rank_that_fails_in_a_pass_ends_the_run_with_its_name(
    launch: Launch, identity_options: dict[str, Any], what: str, message: str
) -> None:
    processes = launch(
        IN_A_PASS.format(what=what), variables=FSDP, name="lost", updates=50, rank_deadline=30.0, microbatch_tokens=60
    )
    start = time.monotonic()
    text = processes[0].communicate(timeout=200)[0]
    assert time.monotonic() - start < 150
    assert processes[0].returncode not in (0, None)
    assert re.search(message, text.splitlines()[-1]), text
    if what.startswith("raise"):
        assert "no room for activations" in processes[1].communicate(timeout=60)[0]
    # Nothing was written of weights that no longer belong together.
    assert not list((Path(identity_options["output_dir"]) / "lost" / "checkpoints").iterdir())


@pytest.mark.slow
def test_ctrl_c_on_one_rank_saves_the_whole(launch: Launch, identity_options: dict[str, Any]) -> None:
    processes = launch(variables=FSDP, name="stopped", updates=500, save_every=1000)
    folder = Path(identity_options["output_dir"]) / "stopped"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if (folder / "metrics.jsonl").exists() and len((folder / "metrics.jsonl").read_text().splitlines()) >= 3:
            break
        time.sleep(0.05)
    processes[1].send_signal(signal.SIGINT)
    texts = [process.communicate(timeout=100)[0] for process in processes]
    assert all("--resume" in text for text in texts), texts
    done = len(metrics(folder))
    assert (folder / "checkpoints" / f"update-{done:06d}" / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"FSDP_VERSION": "1"}, "Set fsdp_version: 2"),
        ({"FSDP_OFFLOAD_PARAMS": "true"}, "fsdp_offload_params: true"),
        ({"FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}, "fsdp_cpu_ram_efficient_loading: true"),
        ({"FSDP_ACTIVATION_CHECKPOINTING": "true"}, "Set gradient_checkpointing: true"),
        ({"FSDP_RESHARD_AFTER_FORWARD": "FULL_SHARD"}, "fsdp_config cannot be used"),
    ],
)
def test_launches_that_would_be_misread_are_refused(
    variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (FSDP | variables).items():
        monkeypatch.setenv(name, value)
    ranks = Ranks(cpu=True, deadline=1.0)
    assert not Shards(ranks, GRPOConfig(updates=1)).active  # one process has nobody to divide with
    ranks.count = 2
    with pytest.raises(ConfigError, match=said):
        Shards(ranks, GRPOConfig(updates=1))


def test_ppo_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    ranks = Ranks(cpu=True, deadline=1.0)
    ranks.count = 2
    with pytest.raises(ConfigError, match="use algorithm grpo"):
        Shards(ranks, GRPOConfig(updates=1, algorithm="ppo"))


def test_weights_of_few_bits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in FSDP.items():
        monkeypatch.setenv(name, value)
    ranks = Ranks(cpu=True, deadline=1.0)
    ranks.count = 2
    model = torch.nn.Linear(2, 2)
    model.weight = torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(ConfigError, match="8 or 4 bits"):
        Shards(ranks, GRPOConfig(updates=1)).divide(model, torch.device("cpu"))


@pytest.mark.parametrize("kind", ["DEEPSPEED", "MEGATRON_LM"])
def test_other_engines_are_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"ACCELERATE_USE_{kind}", "true")
    with pytest.raises(ConfigError, match="trajgym plan --plan fsdp"):
        Ranks(cpu=True, deadline=1.0)
