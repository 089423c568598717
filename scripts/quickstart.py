"""Watch the embedded model learn to use a calculator: evaluate, train, evaluate again."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from trajgym.envs.arithmetic_tasks import held_out
from trajgym.envs.transcript import transcript
from trajgym.errors import ConfigError
from trajgym.evaluation.evaluate import Evaluation, Share, env_maker, evaluate, succeeded
from trajgym.evaluation.measures import newcombe
from trajgym.rollout import fault_summary
from trajgym.trainers.config import GRPOConfig, load_config

__all__ = ["main"]

ENV = "ArithmeticTool-v0"


def main(args: Sequence[str]) -> int:
    """Run the demonstration and print its table."""
    parser = argparse.ArgumentParser(
        prog="trajgym quickstart",
        description=__doc__,
        epilog="Other options are those of `trajgym train quickstart`, e.g. --gamma 0.9 or --updates 30.",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--problems", type=int, default=300, help="held-out problems to evaluate on")
    options, overrides = parser.parse_known_args(args)
    config = load_config("quickstart", ["--seed", str(options.seed), *overrides])
    if config.env != ENV or options.problems < 1:
        raise ConfigError(
            f"quickstart evaluates on at least one problem of {ENV}, got --problems {options.problems} and --env "
            f"{config.env}. Other environments: trajgym train quickstart --env …"
        )
    if config.name is None and not (config.resume or config.overwrite):
        config = config.model_copy(update={"name": _free_name(config.output_dir, f"quickstart-seed{options.seed}")})

    from trajgym.trainers.grpo import train
    from trajgym.trainers.runfolder import finished_checkpoints

    start = time.monotonic()
    print(f"1/3  The shipped model on {options.problems} held-out problems it has never seen …", flush=True)
    before = measure(config.model, config, options.problems)
    print(f"     {before.success.value:.0%} right. ({time.monotonic() - start:.0f} s)\n", flush=True)
    print(f"2/3  GRPO on the reward of every step, {config.updates} updates …", flush=True)
    folder = train(config, name="quickstart")
    print("\n3/3  The trained model on the same problems …", flush=True)
    newest = finished_checkpoints(folder / "checkpoints")[-1]
    after = measure(str(newest / "model"), config, options.problems)
    report(before, after, folder)
    print(f"{time.monotonic() - start:.0f} s in all. Left in {folder}: curves.png, dialogues.txt, metrics.jsonl, …")
    return 0


def measure(model: str, config: GRPOConfig, problems: int) -> Evaluation:
    """Evaluate a model on held-out problems of the recipe's difficulties, sampling as in training."""
    from trajgym.trainers.models import load_model, make_policy, pick_device

    weights, tokenizer = load_model(model, dtype=config.dtype, device=pick_device(config.device))
    tasks = held_out(problems, config.env_kwargs.get("difficulty", (1, 4)))
    policy = make_policy(weights, tokenizer, config)
    environment = env_maker(policy, config.env, **{**config.env_arguments, "split": "test"})
    return evaluate(policy, environment, tasks, seed=config.seed)


def report(before: Evaluation, after: Evaluation, folder: Path) -> None:
    """Print the table and write the picture and the dialogues."""
    from trajgym.evaluation.plots import plot_run, read_metrics

    table = Table(
        "steps", "tasks", "before, %", "after, %", "change, points", title="Right answers on held-out problems (95 %)"
    )
    rows = [(str(level), before.by_difficulty[level], after.by_difficulty[level]) for level in before.by_difficulty]
    for level, old, new in [*rows, ("all", before.success, after.success)]:
        if level == "all":
            table.add_section()
        low, high = newcombe((old.successes, old.trials), (new.successes, new.trials))
        change = f"{100 * (new.value - old.value):+.0f} ({100 * low:+.0f} … {100 * high:+.0f})"
        table.add_row(level, str(old.trials), _show(old), _show(new), change)
    console = Console()
    console.print()
    console.print(table)
    print(f"Turns per episode {before.mean_turns:.1f} → {after.mean_turns:.1f}; "
          f"reward {before.mean_reward:.2f} → {after.mean_reward:.2f}")  # fmt: skip
    for when, found in (("Before", before), ("After", after)):
        if found.faults:
            print(f"{when} training, {fault_summary(found.trajectories)} They count as wrong answers.")
    plot_run(read_metrics(folder / "metrics.jsonl"), folder / "curves.png", title="GRPO on per-step rewards")
    pairs = zip(before.trajectories, after.trajectories, strict=True)
    learned = [(b, a) for b, a in pairs if succeeded(a) and not succeeded(b) and len(a.steps) > 2][:3]
    blocks = [
        f"=== {a.task.id}: {name} ===\n{transcript(t.messages, t.steps)}\n"
        for b, a in learned
        for name, t in (("before", b), ("after", a))
    ]
    (folder / "dialogues.txt").write_text("\n".join(blocks), encoding="utf-8", errors="backslashreplace")
    if blocks:
        print("\nOne of the dialogues, after training:\n")
        print(transcript(learned[0][1].messages[1:], learned[0][1].steps))


def _show(share: Share) -> str:
    low, high = share.interval
    return f"{100 * share.value:.0f} ({100 * low:.0f} … {100 * high:.0f})"


def _free_name(parent: Path, name: str) -> str:
    """Return ``name``, or with a number behind it when there is such a run already."""
    taken = {path.name for path in parent.glob(f"{name}*")} if parent.is_dir() else set()
    names = [name, *(f"{name}-{i}" for i in range(2, len(taken) + 3))]
    return next(n for n in names if n not in taken)
