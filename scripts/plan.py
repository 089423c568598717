"""Plan a run on several GPUs: which way to distribute it, what each GPU holds, and the files to launch it with."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trajgym.errors import ConfigError
from trajgym.policies import tiny_path
from trajgym.trainers.config import GRPOConfig, load_config
from trajgym.trainers.launch_files import (
    DEBUG_ENVIRONMENT,
    PRECISIONS,
    WATCH,
    launch_command,
    write_launch_files,
)
from trajgym.trainers.memory import MemoryEstimate, estimate
from trajgym.trainers.scale import (
    ENGINES,
    PLANS,
    Plan,
    choose_plan,
    memory_per_device,
    scaled_learning_rate,
    total_batch,
)
from trajgym.trainers.shape import ModelShape, shape_of_config

__all__ = ["main"]

_GIB = 1 << 30


def main(args: Sequence[str]) -> int:
    """Choose a plan, print it and write its launch files."""
    parser = argparse.ArgumentParser(prog="trajgym plan", description=__doc__)
    parser.add_argument("recipe", help="a recipe's name or a YAML file, as of trajgym train")
    parser.add_argument("--gpus", type=int, required=True, metavar="N", help="on all machines together")
    parser.add_argument("--machines", type=int, default=1, metavar="N", help="how many computers (default: 1)")
    parser.add_argument("--gpu-memory", type=float, default=80.0, metavar="GIB", help="of each GPU (default: 80)")
    parser.add_argument("--model", help="in the place of the recipe's: 'tiny', a folder, or a hub id")
    parser.add_argument("--parameters", type=float, metavar="N", help="its weights, where it cannot be looked up: 8e9")
    parser.add_argument("--engine", default="fsdp", help=f"what divides parameters: {', '.join(ENGINES)}")
    parser.add_argument("--plan", help=f"in the place of the one that is chosen: {', '.join(PLANS)}")
    parser.add_argument("--ip", help="address of the first machine, where there are several")
    parser.add_argument("--port", type=int, default=29500, help="free port of it (default: 29500)")
    parser.add_argument("--precision", help=f"number format of passes in the file: {', '.join(PRECISIONS)}")
    parser.add_argument("--output", type=Path, default=Path("launch"), metavar="DIR", help="where the files go")
    parser.add_argument("--base-batch", type=int, metavar="N", help="trajectories that the learning rate is meant for")
    parser.add_argument("--rule", default="sqrt", help="how the learning rate grows with the batch: sqrt, linear")
    options = parser.parse_args(args)
    config = load_config(options.recipe)
    if options.model is not None:
        config = config.model_copy(update={"model": options.model})
    # What is wrong with these is said before a model is looked up, which may take a while.
    how: dict[str, Any] = {
        "machines": options.machines, "engine": options.engine, "device_memory": options.gpu_memory * _GIB
    }  # fmt: skip
    choose_plan(options.parameters or 1, options.gpus, **how)
    shape = None if options.parameters is not None else _shape(config.model)
    need = None if shape is None else estimate(shape, config)
    plan = choose_plan(
        options.parameters if shape is None else shape.parameters,
        options.gpus,
        need=need,
        **how,
    )
    if options.plan is not None:
        plan = Plan(options.plan, plan.processes, plan.machines, reason="it was asked for")
    _print_plan(plan, config, need, options)
    _print_launch(plan, options)
    return 0


def _shape(model: str) -> ModelShape:
    """Return a model's sizes from its configuration alone."""
    from transformers import AutoConfig

    source = tiny_path() if model == "tiny" else Path(model).expanduser() if model.startswith("~") else model
    try:
        return shape_of_config(AutoConfig.from_pretrained(str(source)))
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"The configuration of model {model!r} cannot be read: {first} Give --parameters, e.g. 8e9."
        ) from error


def _print_plan(plan: Plan, config: GRPOConfig, need: MemoryEstimate | None, options: argparse.Namespace) -> None:
    where = f"{plan.machines} machines" if plan.machines > 1 else "one machine"
    print(f"Plan: {plan.name}, {plan.processes} processes on {where}: {plan.reason}.")
    if need is not None:
        each = memory_per_device(plan, need)
        fits = "fits" if each <= 0.9 * options.gpu_memory * _GIB else "DOES NOT FIT"
        print(f"Memory: about {each / _GIB:.1f} GiB on each GPU of {options.gpu_memory:g} GiB, which {fits}.")
    batch = total_batch(config.num_generations, config.groups_per_update)
    print(f"Batch: {batch} trajectories per update, dealt to all processes, whatever their number.")
    if options.base_batch is not None:
        rate = scaled_learning_rate(config.learning_rate, options.base_batch, batch, options.rule)
        print(
            f"Learning rate: {config.learning_rate:g} at {options.base_batch} trajectories is {rate:.3g} at {batch} "
            f"({options.rule})."
        )


def _print_launch(plan: Plan, options: argparse.Namespace) -> None:
    several: dict[str, Any] = {"ip": options.ip, "port": options.port} if plan.machines > 1 else {}
    paths = write_launch_files(plan, options.output, mixed_precision=options.precision, **several)
    program = ["trajgym.cli", "train", options.recipe]
    if options.model is not None:
        program += ["--model", options.model]
    for rank, path in enumerate(paths):
        print(f"Launch{f' on machine {rank}' if plan.machines > 1 else ''}: {launch_command(program, path)}")
    if plan.name in ("zero2", "zero3"):
        print("DeepSpeed is for SFT and DPO; `trajgym train` divides parameters with --engine fsdp.")
    if plan.name != "single":
        variables = " ".join(f"{name}={value}" for name, value in DEBUG_ENVIRONMENT.items())
        print(f"Where it hangs: {variables} before the command, and {WATCH} beside it.")
