"""Evaluate one model or several on the same tasks: trajgym evaluate --model MODEL --env ENV --out DIR."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trajgym import __version__
from trajgym.envs.make import make
from trajgym.errors import ConfigError
from trajgym.evaluation.compare import compare_all
from trajgym.evaluation.evaluate import env_maker, evaluate
from trajgym.evaluation.report import Report, Result, as_markdown, write_report
from trajgym.evaluation.robustness import changed, check_forgetting, compare_changed
from trajgym.evaluation.samples import Price, samples_of
from trajgym.evaluation.selection import read_tasks, tasks_of
from trajgym.evaluation.store import Store
from trajgym.evaluation.summary import summarise
from trajgym.policies.catalogue import POLICIES
from trajgym.rollout import fault_summary
from trajgym.scripts.arguments import env_kwargs
from trajgym.scripts.evaluate_changes import CHANGES, find_change
from trajgym.scripts.evaluate_players import Player, load
from trajgym.types import Task

__all__ = ["main"]

_SHOWN_K = (1, 2, 3, 5, 10, 20, 50, 100)
_SECONDS_BETWEEN_SIGNS = 10.0
_ELSEWHERE = "--forgetting"  # stands among the names of changes, and no change can be called so


def main(args: Sequence[str]) -> int:
    """Play, count, compare and write the report; 0: done."""
    options = _parser().parse_args(args)
    models = _named(options.model)
    ks = _ks(options)
    prices = _prices_of(options.price, models)
    tasks = _tasks(options, options.env, options.env_kwargs, options.data)
    sets = {"": tasks}
    pairs = {name: changed(tasks, find_change(name), name.rpartition(":")[2]) for name in options.change}
    sets |= {name.rpartition(":")[2]: [twin for _, twin in found] for name, found in pairs.items()}
    other = _tasks(options, options.forgetting, {}, None) if options.forgetting else []
    played: dict[str, dict[str, Result]] = {name: {} for name in (*sets, *([_ELSEWHERE] if other else []))}
    for name, model in models.items():
        player = load(model, options, _arguments(options.split, options.env_kwargs))
        for which, chosen in sets.items():
            env = (options.env, _arguments(options.split, options.env_kwargs))
            played[which][name] = _play(name, player, env, chosen, options, ks, prices[name])
        if other:
            env = (options.forgetting, _arguments(options.split, {}))
            played[_ELSEWHERE][name] = _play(name, player, env, other, options, ks, prices[name])
        getattr(player.policy, "close", lambda: None)()
        del player  # the next one may need its memory
    report = _report(options, played, tasks)
    files = write_report(report, options.out, most_dialogues=options.dialogues)
    print(as_markdown(report))
    print(f"Written: {', '.join(map(str, files))}")
    return 0


def _play(
    name: str,
    player: Player,
    env: tuple[str, Mapping[str, Any]],
    tasks: Sequence[Task],
    options: argparse.Namespace,
    ks: Sequence[int],
    price: Price | None,
) -> Result:
    """Play some tasks with one model, going on where an earlier call has stopped."""
    env_id, arguments = env
    identity = {**player.settings, "env": env_id, "arguments": dict(arguments), "trajgym": __version__}
    store = None if options.fresh else Store(options.out / "played" / f"{player.key}.jsonl", identity)
    found = evaluate(
        player.policy,
        env_maker(player.policy, env_id, **arguments),
        tasks,
        seed=options.seed,
        threads=options.threads,
        attempts=options.samples,
        store=store,
        on_progress=_signs(name, len(tasks) * options.samples),
    )
    if found.faults:
        print(f"{name}: {fault_summary(found.trajectories)} They count as wrong answers.", file=sys.stderr)
    samples = samples_of(found, price=price)
    summary = summarise(samples, k=ks, currency=price.currency if price else "$", seed=options.seed)
    return Result(name, found, samples, summary, player.settings)


def _report(options: argparse.Namespace, played: Mapping[str, Mapping[str, Result]], tasks: Sequence[Task]) -> Report:
    results = list(played[""].values())
    rows = {result.name: result.samples for result in results}
    robustness = {
        name: [
            compare_changed(change, rows[name], found[name].samples, seed=options.seed)
            for change, found in played.items()
            if change not in ("", _ELSEWHERE)
        ]
        for name in rows
        if len(played) - (_ELSEWHERE in played) > 1
    }
    elsewhere = [(result.name, result.samples) for result in played.get(_ELSEWHERE, {}).values()]
    settings = {
        "environment": options.env,
        "arguments": json.dumps(options.env_kwargs),
        "tasks": f"{len(tasks)}, {options.data or f'split {options.split}'}",
        "attempts": f"{options.samples} at temperature {options.temperature:g}",
        "seed": options.seed,
        "trajgym": __version__,
    }
    return Report(
        f"{', '.join(rows)} on {options.env}",
        results,
        settings,
        compare_all(rows, seed=options.seed),
        robustness,
        [check_forgetting(elsewhere[0], later, seed=options.seed) for later in elsewhere[1:]],
    )


def _tasks(options: argparse.Namespace, env_id: str, kwargs: Mapping[str, Any], data: Path | None) -> list[Task]:
    if data is not None:
        tasks = read_tasks(data, options.limit)
        again = len(tasks) - len({task.question for task in tasks})
        if again:
            print(
                f"{data}: {again} of {len(tasks)} tasks ask what an earlier one asks. Each counts as a task of its "
                "own, so that intervals come out too narrow.",
                file=sys.stderr,
            )
        return tasks
    env = make(env_id, **_arguments(options.split, kwargs))
    try:
        return tasks_of(env, options.limit, seed=options.seed)
    finally:
        env.close()


def _arguments(split: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {**({"split": split} if split else {}), **kwargs}


def _named(given: Sequence[str]) -> dict[str, str]:
    """Return each model by the name that the report calls it: ``NAME=MODEL``, or the last part of a path."""
    models: dict[str, str] = {}
    for word in given:
        name, equals, model = word.partition("=")
        if not equals:
            name, model = Path(word).name or word, word
        if not name or not model:
            raise ConfigError(f"--model must be a model, or NAME=MODEL, got {word!r}.")
        if name in models:
            raise ConfigError(f"Two models are called {name!r}. Name them: --model before={model} --model after=…")
        models[name] = model
    return models


def _prices_of(given: Sequence[tuple[str, float, float]], names: Iterable[str]) -> dict[str, Price | None]:
    """Return each model's price: its own, that of all models, or none."""
    own = {name: Price(prompt, sampled) for name, prompt, sampled in given}
    for name in own:
        if name and name not in names:
            raise ConfigError(f"--price {name}=… is for no model of this call; there are: {', '.join(names)}.")
    if len(own) < len(given):
        raise ConfigError("--price is given twice for the same models.")
    return {name: own.get(name, own.get("")) for name in names}


def _ks(options: argparse.Namespace) -> list[int]:
    for name in ("samples", "threads", "slots", "max_turn_tokens"):
        if getattr(options, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(options, name)}.")
    for name, least in (("seed", 0), ("dialogues", 0), ("max_episode_tokens", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least {least}, got {value}.")
    if not 0 <= options.temperature < float("inf"):
        raise ConfigError(f"--temperature must be a finite number from 0, got {options.temperature}.")
    scripted = all(model in POLICIES for model in _named(options.model).values())
    if options.samples > 1 and options.temperature == 0 and not scripted:
        raise ConfigError("Attempts at temperature 0 are all alike. Set --temperature 0.7, or --samples 1.")
    return options.k or [k for k in {*_SHOWN_K, options.samples} if k <= options.samples]


def _signs(name: str, total: int) -> Callable[[int], None]:
    """Return what tells now and then how far an evaluation has come."""
    last = time.monotonic()

    def sign(done: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _SECONDS_BETWEEN_SIGNS:
            last = time.monotonic()
            print(f"{name}: {done} of {total} episodes", file=sys.stderr, flush=True)

    return sign


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trajgym evaluate", description=__doc__, epilog="docs/evaluation.md tells more."
    )
    add = parser.add_argument
    add(
        "--model",
        action="append",
        required=True,
        metavar="[NAME=]MODEL",
        help="'tiny', a model's, an adapter's or a run's folder, a hub id, 'expert', 'random', api:NAME@URL, or an "
        "installed package's policy; may be given several times",
    )
    add("--env", default="GSM8KTool-v0", help="environment id, see `trajgym envs` (GSM8KTool-v0)")
    add("--env-kwargs", type=env_kwargs, default={}, metavar="JSON", help="arguments of gym.make")
    add("--split", default="test", help="which part of the environment's tasks (test); '' where it has no parts")
    add("--data", type=Path, metavar="FILE", help="tasks from a file of JSON lines with question and answer")
    add("--limit", type=int, metavar="N", help="the first N tasks (all of a data set, else 200)")
    add("--samples", type=int, default=1, metavar="N", help="attempts at each task (1)")
    add("--temperature", type=float, default=0.0, help="0 takes the most probable token (0)")
    add("--k", type=_numbers, default=[], metavar="K,…", help="for Accuracy@K")
    add("--seed", type=int, default=0, help="decides the draws, and the tasks where they are made up (0)")
    add("--out", type=Path, required=True, metavar="DIR", help="folder of the report; played episodes are kept in it")
    add("--fresh", action="store_true", help="play everything again, remember nothing")
    add(
        "--change",
        action="append",
        default=[],
        metavar="NAME",
        help=f"also play changed tasks: {', '.join(CHANGES)}, or package.module:function",
    )
    add("--forgetting", metavar="ENV", help="also play another environment, and see what later models have forgotten")
    add(
        "--price",
        type=_price,
        action="append",
        default=[],
        metavar="[NAME=]P,S",
        help="dollars for a million tokens read and for a million written, of all models or of one",
    )
    add("--api-calls", choices=("text", "native"), default="text", help="how endpoints are to call tools (text)")
    add(
        "--api-tool-role",
        choices=("user", "tool"),
        default="user",
        help="as whom endpoints hear of tools where calls are text; tool is right for trajgym serve (user)",
    )
    add("--dialogues", type=int, default=500, metavar="N", help="tasks whose dialogues the page shows (500)")
    add("--max-turn-tokens", type=int, default=256, help="most new tokens in one turn (256)")
    add("--max-episode-tokens", type=int, help="most tokens of a dialogue (what the model can hold, at most 2048)")
    add("--thinking", action="store_true", help="let the chat template open a reasoning block, where it has one")
    add("--slots", type=int, default=64, help="episodes that are live at once (64)")
    add("--threads", type=int, default=16, help="environments that may step at once (16)")
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="the weights' number format (float32)")
    add("--device", default="auto", help="'auto', 'cpu', 'cuda', …")
    add("--device-map", metavar="MAP", help="deals layers to GPU, memory and disk: auto, or a JSON object")
    return parser


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be whole numbers such as 1,3, got {text!r}") from error


def _price(text: str) -> tuple[str, float, float]:
    name, _, numbers = text.rpartition("=")
    try:
        prompt, sampled = map(float, numbers.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be two numbers such as 0.5,1.5, got {text!r}") from error
    return name, prompt, sampled
