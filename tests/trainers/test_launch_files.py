"""Launch files are what accelerate and DeepSpeed read them as."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from trajgym.errors import ConfigError, StorageError, UnknownNameError
from trajgym.trainers.launch_files import (
    DEBUG_ENVIRONMENT,
    DEFAULT_PATH,
    deepspeed_config,
    launch_command,
    launch_config,
    launch_files,
    write_launch_files,
)
from trajgym.trainers.scale import Plan

PLANS = [
    (Plan("single", 1), "NO"),
    (Plan("ddp", 4), "MULTI_GPU"),
    (Plan("fsdp", 4), "FSDP"),
    (Plan("zero2", 4), "DEEPSPEED"),
    (Plan("zero3", 4), "DEEPSPEED"),
    (Plan("zero3", 16, 4), "DEEPSPEED"),
    (Plan("fsdp", 16, 4), "FSDP"),
]


@pytest.mark.parametrize(("plan", "kind"), PLANS, ids=lambda x: f"{x.name}-{x.machines}" if isinstance(x, Plan) else x)
def test_accelerate_reads_every_file(plan: Plan, kind: str, tmp_path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    several = {"ip": "192.168.1.100"} if plan.machines > 1 else {}
    paths = write_launch_files(plan, tmp_path / "launch", **several)
    assert len(paths) == plan.machines
    for rank, path in enumerate(paths):
        found = load_config_from_file(str(path))
        assert found.distributed_type.value == kind
        assert (found.num_processes, found.num_machines, found.machine_rank) == (plan.processes, plan.machines, rank)
        assert not found.use_cpu
        if plan.machines > 1:
            assert (found.main_process_ip, found.main_process_port) == ("192.168.1.100", 29500)


def test_the_numbers_of_the_files() -> None:
    assert launch_config(Plan("ddp", 4))["mixed_precision"] == "fp16"
    two = launch_config(Plan("zero2", 4))["deepspeed_config"]
    assert two == {
        "zero_stage": 2,
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 1.0,
        "offload_optimizer_device": "none",
        "offload_param_device": "none",
        "zero3_init_flag": False,
    }
    three = launch_config(Plan("zero3", 4))["deepspeed_config"]
    assert (three["zero_stage"], three["zero3_init_flag"]) == (3, True)
    assert three["offload_optimizer_device"] == three["offload_param_device"] == "cpu"
    assert set(launch_files(Plan("zero3", 16, 4), ip="node-0.cluster")) == {f"zero3-machine{r}.yaml" for r in range(4)}


def test_the_environment_of_an_fsdp_launch_is_what_the_trainer_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    (path,) = write_launch_files(Plan("fsdp", 2), tmp_path)
    given = launch_command_parser().parse_args(["--config_file", str(path), "--cpu", "script.py"])
    given, _, _ = _validate_launch_command(given)
    given.use_fsdp = True  # with --cpu, which alone runs here, accelerate leaves it out
    for name in list(os.environ):
        if name.startswith(("FSDP_", "ACCELERATE_")):
            monkeypatch.delenv(name)
    environment = prepare_multi_gpu_env(given)
    assert environment["ACCELERATE_USE_FSDP"] == "true"
    assert environment["FSDP_VERSION"] == "2"
    assert environment["FSDP_RESHARD_AFTER_FORWARD"] == "true"
    assert environment["FSDP_OFFLOAD_PARAMS"] == environment["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "false"


@pytest.mark.parametrize("name", ["zero2", "zero3"])
def test_deepspeed_reads_its_configuration(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("deepspeed")
    from accelerate import DeepSpeedPlugin
    from deepspeed.runtime.config import DeepSpeedConfig

    own = deepspeed_config(Plan(name, 4), mixed_precision="bf16")
    found = DeepSpeedConfig({**own, "train_micro_batch_size_per_gpu": 2})
    assert found.zero_config.stage == int(name[-1])
    assert (found.gradient_clipping, found.gradient_accumulation_steps) == (1.0, 4)
    plugin = DeepSpeedPlugin(hf_ds_config=own)
    assert plugin.zero_stage == int(name[-1])
    assert plugin.is_zero3_init_enabled() == (name == "zero3")


@pytest.mark.parametrize(
    ("plan", "options", "said"),
    [
        (Plan("zero3", 16, 4), {}, "give ip"),
        (Plan("zero3", 16, 4), {"ip": "192.168.1.1000"}, "must be an address"),
        (Plan("zero3", 16, 4), {"ip": "a b"}, "must be an address"),
        (Plan("zero3", 16, 4), {"ip": "::1", "port": 0}, "port must lie in 1"),
        (Plan("ddp", 4), {"machine_rank": 1}, r"machine_rank must lie in 0 … 0"),
        (Plan("ddp", 4), {"mixed_precision": "bf61"}, "Did you mean 'bf16'"),
    ],
)
def test_what_no_launch_can_use_is_refused(plan: Plan, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        launch_config(plan, **options)


def test_only_deepspeed_has_a_deepspeed_configuration() -> None:
    with pytest.raises(ConfigError, match="'zero2' and 'zero3' have"):
        deepspeed_config(Plan("fsdp", 4))
    with pytest.raises(UnknownNameError):
        deepspeed_config(Plan("zero2", 4), mixed_precision="int8")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Choose a folder"):
        write_launch_files(Plan("ddp", 4), tmp_path / "file")


def test_commands() -> None:
    program = ["trajgym.cli", "train", "quickstart"]
    file = Path("my files/ddp.yaml")
    assert launch_command(program, file).startswith(
        "accelerate launch --config_file 'my files/ddp.yaml' -m trajgym.cli"
    )
    assert launch_command(["train.py"], module=False) == "accelerate launch train.py"
    assert DEFAULT_PATH.as_posix() == "~/.cache/huggingface/accelerate/default_config.yaml"
    assert DEBUG_ENVIRONMENT == {"ACCELERATE_LOG_LEVEL": "INFO", "NCCL_DEBUG": "INFO"}
    with pytest.raises(ConfigError, match="nothing to launch"):
        launch_command([])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_accelerate_launches_a_run_from_a_file(name: str, identity_options: dict[str, Any], tmp_path: Path) -> None:
    (launch,) = write_launch_files(Plan(name, 2), tmp_path, mixed_precision="no")
    options = {**identity_options, "env": "ArithmeticTool-v0", "model": "tiny", "name": "launched", "monitors": []}
    options |= {"updates": 1, "groups_per_update": 2, "num_generations": 2, "max_episode_tokens": 512, "device": "cpu"}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(options))
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(launch)]
    command += ["--main_process_port", "0", "-m", "trajgym.cli", "train", str(tmp_path / "run.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("divided among 2 ranks" in done.stdout) == (name == "fsdp")
    assert done.stdout.count("1/1") == 1  # of two processes, one speaks
    (checkpoint,) = (tmp_path / "runs" / "launched" / "checkpoints").iterdir()
    assert (checkpoint / "model" / "model.safetensors").is_file()
