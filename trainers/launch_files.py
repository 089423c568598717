"""Files for ``accelerate launch``, the commands that use them, and what helps where a launch hangs.

The numbers of a file that a plan does not decide (gradient accumulation, clipping, mixed precision) act on trainers
that leave them to accelerate, such as those of SFT and DPO. `trajgym train` takes them from its own options.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from trajgym.errors import ConfigError, StorageError, UnknownNameError
from trajgym.trainers.scale import Plan

__all__ = [
    "DEBUG_ENVIRONMENT",
    "DEFAULT_PATH",
    "PRECISIONS",
    "WATCH",
    "deepspeed_config",
    "launch_command",
    "launch_config",
    "launch_files",
    "write_launch_files",
]

PRECISIONS = ("no", "fp16", "bf16")

DEFAULT_PATH = Path("~/.cache/huggingface/accelerate/default_config.yaml")
"""What ``accelerate launch`` reads when it is given no file."""

DEBUG_ENVIRONMENT: Mapping[str, str] = {"ACCELERATE_LOG_LEVEL": "INFO", "NCCL_DEBUG": "INFO"}
"""Variables to set where ranks do not find each other, or wait for ever."""

WATCH = "watch -n 1 nvidia-smi"
"""What shows whether the GPUs work, and how full they are."""


def launch_config(
    plan: Plan,
    *,
    machine_rank: int = 0,
    ip: str | None = None,
    port: int = 29500,
    mixed_precision: str | None = None,
) -> dict[str, Any]:
    """Return the contents of a launch file.

    Args:
        plan: How to distribute the run.
        machine_rank: Number of the machine that the file is for, from 0; differs from machine to machine.
        ip: Address of machine 0, or its name; needed with several machines.
        port: Free port there.
        mixed_precision: Number format of passes; by default ``"fp16"``, for FSDP and one process ``"no"``.

    Raises:
        ConfigError: For an address, port or rank that cannot be.
        UnknownNameError: For another number format.
    """
    if mixed_precision is not None and mixed_precision not in PRECISIONS:
        raise UnknownNameError("mixed precision", mixed_precision, PRECISIONS)
    if isinstance(machine_rank, bool) or not isinstance(machine_rank, int) or not 0 <= machine_rank < plan.machines:
        raise ConfigError(f"machine_rank must lie in 0 … {plan.machines - 1}, got {machine_rank!r}.")
    kinds = {"single": "NO", "ddp": "MULTI_GPU", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED", "fsdp": "FSDP"}
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kinds[plan.name],
        "mixed_precision": mixed_precision or ("no" if plan.name in ("single", "fsdp") else "fp16"),
        "num_machines": plan.machines,
        "num_processes": plan.processes,
        "machine_rank": machine_rank,
        "main_training_function": "main",
        "use_cpu": False,
    }
    if plan.machines > 1:
        config |= {"main_process_ip": _address(ip), "main_process_port": _port(port), "rdzv_backend": "static"}
        config["same_network"] = True
    if plan.name == "fsdp":
        config["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": True,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_state_dict_type": "FULL_STATE_DICT",
            "fsdp_offload_params": False,
            "fsdp_cpu_ram_efficient_loading": False,
            "fsdp_activation_checkpointing": False,
        }
    if plan.name in ("zero2", "zero3"):
        place = "cpu" if plan.name == "zero3" else "none"
        config["deepspeed_config"] = {
            "zero_stage": int(plan.name[-1]),
            "gradient_accumulation_steps": 4,
            "gradient_clipping": 1.0,
            "offload_optimizer_device": place,
            "offload_param_device": place,
            "zero3_init_flag": plan.name == "zero3",
        }
        if plan.name == "zero3":
            config["deepspeed_config"]["zero3_save_16bit_model"] = True
        if plan.machines > 1:
            config["deepspeed_config"]["deepspeed_multinode_launcher"] = "standard"
    return config


def deepspeed_config(plan: Plan, *, mixed_precision: str | None = None) -> dict[str, Any]:
    """Return DeepSpeed's own configuration of a plan, for a trainer that reads such a file.

    Args:
        plan: ``zero2`` or ``zero3``.
        mixed_precision: As in :func:`launch_config`.

    Raises:
        ConfigError: For a plan without DeepSpeed.
    """
    launch = launch_config(plan, ip="localhost", mixed_precision=mixed_precision)
    if "deepspeed_config" not in launch:
        raise ConfigError(f"The plan {plan.name!r} has no DeepSpeed configuration; 'zero2' and 'zero3' have.")
    options = launch["deepspeed_config"]
    zero: dict[str, Any] = {
        "stage": options["zero_stage"],
        "overlap_comm": True,
        "contiguous_gradients": True,
        "offload_optimizer": {"device": options["offload_optimizer_device"]},
    }
    if plan.name == "zero3":
        zero["offload_param"] = {"device": options["offload_param_device"]}
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    return {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": options["gradient_accumulation_steps"],
        "gradient_clipping": options["gradient_clipping"],
        "fp16": {"enabled": launch["mixed_precision"] == "fp16"},
        "bf16": {"enabled": launch["mixed_precision"] == "bf16"},
        "zero_optimization": zero,
    }


def launch_files(plan: Plan, **options: Any) -> dict[str, dict[str, Any]]:
    """Return the launch files of a plan by name: one, or one for each machine.

    Args:
        plan: How to distribute the run.
        options: Of :func:`launch_config`, but for ``machine_rank``.
    """
    if plan.machines == 1:
        return {f"{plan.name}.yaml": launch_config(plan, **options)}
    return {
        f"{plan.name}-machine{rank}.yaml": launch_config(plan, machine_rank=rank, **options)
        for rank in range(plan.machines)
    }


def write_launch_files(plan: Plan, folder: Path, **options: Any) -> list[Path]:
    """Write the launch files of a plan into ``folder`` and return their paths; see :func:`launch_files`.

    Raises:
        StorageError: When they cannot be written.
    """
    paths = []
    for name, config in launch_files(plan, **options).items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        except OSError as error:
            raise StorageError(f"Cannot write {folder / name}: {error.strerror or error}. Choose a folder.") from error
        paths.append(folder / name)
    return paths


def launch_command(program: Sequence[str], config_file: Path | None = None, *, module: bool = True) -> str:
    """Return the command that starts a program on every process of a machine.

    Args:
        program: A module or a script, then its arguments.
        config_file: The launch file; without one, accelerate reads ``DEFAULT_PATH``.
        module: Whether the program is a module.

    >>> launch_command(["trajgym.cli", "train", "quickstart"], Path("fsdp.yaml"))
    'accelerate launch --config_file fsdp.yaml -m trajgym.cli train quickstart'
    """
    if not program:
        raise ConfigError("There is nothing to launch: give a module or a script, then its arguments.")
    file = [] if config_file is None else ["--config_file", str(config_file)]
    return shlex.join(["accelerate", "launch", *file, *(["-m"] if module else []), *program])


def _address(ip: str | None) -> str:
    if ip is None:
        raise ConfigError("Several machines need the address of machine 0: give ip, such as 192.168.1.100.")
    try:
        return str(ipaddress.ip_address(ip))
    except ValueError:
        name = re.fullmatch(r"(?!-)[A-Za-z0-9-]{1,63}(\.(?!-)[A-Za-z0-9-]{1,63})*", ip)
        if name is None or re.fullmatch(r"[\d.]+", ip):
            raise ConfigError(f"ip must be an address such as 192.168.1.100, or a host's name, got {ip!r}.") from None
        return ip


def _port(port: int) -> int:
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise ConfigError(f"port must lie in 1 … 65535, got {port!r}.")
    return port
