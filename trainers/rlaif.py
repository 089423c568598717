"""RLAIF, reinforcement learning from a judge's feedback, in its four steps.

1. Sample several answers of the policy to each task.
2. Let a judge grade them, or compare them in pairs.
3. Train a reward model on its preferences.
4. Train the policy on the reward model, and measure it before and after.

Each step leaves its result in the run folder and is not done again when the run goes on (``resume``):
``candidates.jsonl`` · ``verdicts.jsonl`` · ``pairs.jsonl`` · ``reward-model/`` · ``policy/`` · ``summary.json``
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trajgym.envs.make import make
from trajgym.errors import DataError
from trajgym.evaluation.evaluate import Share, fit_arguments, succeeded
from trajgym.evaluation.records import read_trajectories, trajectory_row, write_jsonl
from trajgym.policies.llm import LLMPolicy
from trajgym.rewards import Rubric, Term
from trajgym.rewards.compare import PairJudge
from trajgym.rewards.judge import Judge
from trajgym.rewards.learned import learned_reward
from trajgym.rollout import EnvPool, Episode, collect, derive_seed, fault_summary
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.grpo import train
from trajgym.trainers.judging import Ask, ask_policy, judge_choices, judge_grades
from trajgym.trainers.models import load_model, make_policy, pick_device
from trajgym.trainers.preferences import PreferencePair, read_pairs, write_pairs
from trajgym.trainers.reward_model import train_reward_model
from trajgym.trainers.rlaif_checks import check_start
from trajgym.trainers.rlaif_config import RLAIFConfig
from trajgym.trainers.rlaif_resume import changes_within, is_judged
from trajgym.trainers.runfolder import RunFolder, finished_checkpoints, storage_errors
from trajgym.types import Trajectory

__all__ = ["Measured", "RLAIFResult", "run_rlaif"]


@dataclass(frozen=True)
class Measured:
    """A policy on the tasks it is measured on.

    Args:
        score: Mean score of the reward model; an episode without an answer scores 0.
        accuracy: Right answers, by the environment's truth, which nobody was trained on; ``None`` when it is unknown.
        length: Mean characters that the policy wrote.
    """

    score: float
    accuracy: Share | None
    length: float

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        accuracy = self.accuracy
        right = None if accuracy is None else {"value": accuracy.value, "interval": list(accuracy.interval)}
        return {"score": self.score, "accuracy": right, "length": self.length}


@dataclass(frozen=True)
class RLAIFResult:
    """What came of a run.

    Args:
        folder: The run's folder.
        judged: Counts of step 2, see :class:`trajgym.trainers.judging.Judged`.
        before: The policy at the start.
        after: The trained policy, on the same tasks.
        model: Folder of the trained policy.
    """

    folder: Path
    judged: Mapping[str, Any]
    before: Measured
    after: Measured
    model: Path

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know."""
        found = []
        before, after = self.before, self.after
        if after.score <= before.score:
            found.append(f"the score did not rise ({before.score:.3f} → {after.score:.3f})")
        elif before.accuracy and after.accuracy and after.accuracy.value < before.accuracy.value:
            found.append(
                f"the score rose ({before.score:.3f} → {after.score:.3f}) while right answers became fewer "
                f"({before.accuracy.value:.0%} → {after.accuracy.value:.0%}): the policy learns what the reward model "
                "gets wrong"
            )
        if after.length > 1.5 * before.length:
            found.append(f"answers grew from {before.length:.0f} to {after.length:.0f} characters")
        return tuple(found)


def run_rlaif(config: RLAIFConfig, ask: Ask | None = None) -> RLAIFResult:
    """Do the four steps and return what came of them.

    Args:
        config: All options.
        ask: The judge: turns prompts into replies; :func:`trajgym.trainers.judging.ask_policy` makes one of a policy.
            The model that ``config.judge`` names when left out.

    Raises:
        ConfigError, TemplateError, CheckpointError: Before anything is computed.
        DataError: Likewise, and when nothing can be learned from what the judge said; go on with ``resume`` and
            another judge or criterion.
        EnvironmentFault: When the judge or the reward model is out of order; go on with ``resume``.
        StorageError, TrainingError, Interrupted: As for the training of the policy.
    """
    options = config.policy_options()
    check_start(config, options, asks=ask is None and not is_judged(config.folder))
    folder = RunFolder(config, "rlaif", compare=partial(changes_within, config.folder))
    print("1/4  Sampling answers …", flush=True)
    candidates = _candidates(config, options, folder.path)
    print("2/4  Asking the judge …", flush=True)
    pairs, judged = _pairs(config, options, folder.path, candidates, ask)
    counts = ", ".join(f"{judged[name]} {name}" for name in ("unanswered", "unreadable", "inconsistent", "equal"))
    print(f"     {judged['pairs']} pairs from {judged['candidates']} answers; {counts}.", flush=True)
    print("3/4  Training the reward model …", flush=True)
    model = _reward_model(config, folder.path, pairs)
    print("4/4  Training the policy on it …", flush=True)
    paid = {"learned": (learned_reward(model, device=options.device), 1.0), **config.terms}
    options = options.model_copy(update={"env_kwargs": {**options.env_kwargs, "reward": paid}})
    before = _measure(config, options, folder.path / "before.jsonl", options.model)
    run = train(options.model_copy(update=_going_on(folder.path / "policy")))
    trained = finished_checkpoints(run / "checkpoints")[-1] / "model"
    after = _measure(config, options, folder.path / "after.jsonl", str(trained))
    result = RLAIFResult(folder.path, judged, before, after, trained)
    _summarize(result)
    return result


def _candidates(config: RLAIFConfig, options: GRPOConfig, folder: Path) -> list[Trajectory]:
    """Step 1: several episodes of each task."""
    file = folder / "candidates.jsonl"
    if not file.exists():
        tasks = [derive_seed(config.seed, "rlaif-task", i) for i in range(config.tasks)]
        episodes = [
            Episode(seed, derive_seed(config.seed, "rlaif-candidate", seed, k))
            for seed in tasks
            for k in range(config.candidates)
        ]
        _keep(file, _play(_policy(options, options.model), options, episodes))
    return read_trajectories(file)


def _pairs(
    config: RLAIFConfig, options: GRPOConfig, folder: Path, candidates: Sequence[Trajectory], ask: Ask | None
) -> tuple[list[PreferencePair], dict[str, Any]]:
    """Step 2: what the judge prefers."""
    file, counts = folder / "pairs.jsonl", folder / "judged.json"
    if not is_judged(folder):
        asked = ask or _judge(config, options)
        told: dict[str, Any] = {"criterion": config.criterion, "reference": config.reference}
        told |= {"timeout": config.judge_timeout}
        many: dict[str, Any] = {"most_per_task": config.most_per_task, "seed": config.seed}
        many["by"] = _named(ask) if ask else f"{config.judge} {config.judge_tokens} {config.judge_context}"
        log = folder / "verdicts.jsonl"
        if config.judging == "grades":
            pairs, found = judge_grades(Judge(asked, **told), candidates, log, least_gap=config.least_gap, **many)
        else:
            pairs, found = judge_choices(PairJudge(asked, **told), candidates, log, **many)
        with storage_errors(folder):
            counts.write_text(json.dumps(found.to_json()) + "\n", encoding="utf-8")
            write_pairs(file, pairs)
    try:
        return read_pairs(file), dict(json.loads(counts.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise DataError(f"{counts} is damaged: {error}. Remove it; the verdicts are kept.") from error


def _reward_model(config: RLAIFConfig, folder: Path, pairs: Sequence[PreferencePair]) -> Path:
    """Step 3: a score from the preferences."""
    place = folder / "reward-model"
    if not (place / "report.json").exists():
        options = config.reward_options().model_copy(update={"pairs": folder / "pairs.jsonl", **_going_on(place)})
        train_reward_model(options, pairs=pairs)
    return place


def _measure(config: RLAIFConfig, options: GRPOConfig, file: Path, model: str) -> Measured:
    """Play the tasks to measure on, each once, unless that was done."""
    if not file.exists():
        reward = {"learned": options.env_kwargs["reward"]["learned"]}
        arguments = {**options.env_kwargs, **config.eval_kwargs}
        truth = _truth(options, {name: value for name, value in arguments.items() if name != "reward"})
        reward |= {} if truth is None else {"accuracy": (truth, 1.0)}
        options = options.model_copy(update={"env_kwargs": {**arguments, "reward": reward}})
        seeds = [derive_seed(config.seed, "rlaif-measure", i) for i in range(config.eval_tasks)]
        episodes = [Episode(seed, derive_seed(config.seed, "rlaif-draw", seed)) for seed in seeds]
        _keep(file, _play(_policy(options, model), options, episodes))
    played = read_trajectories(file)
    count = max(1, len(played))
    known = any("accuracy" in step.reward_terms for t in played for step in t.steps)
    return Measured(
        score=sum(step.reward_terms.get("learned", 0.0) for t in played for step in t.steps) / count,
        accuracy=Share(sum(map(succeeded, played)), len(played)) if known else None,
        length=sum(len(step.action.text) for t in played for step in t.steps) / count,
    )


def _truth(options: GRPOConfig, arguments: Mapping[str, Any]) -> Term | None:
    """Return the term by which the environment itself tells right answers, if it has one."""
    env = make(options.env, **({} if options.protocol == "auto" else {"protocol": options.protocol}) | dict(arguments))
    rubric: Any = getattr(env.unwrapped, "rubric", None)
    env.close()
    return rubric["accuracy"][0] if isinstance(rubric, Rubric) and "accuracy" in rubric else None


def _policy(options: GRPOConfig, model: str) -> LLMPolicy:
    return make_policy(*load_model(model, dtype=options.dtype, device=pick_device(options.device)), options)


def _play(policy: LLMPolicy, options: GRPOConfig, episodes: Sequence[Episode]) -> list[Trajectory]:
    probe = make(options.env, **options.env_arguments)
    arguments = fit_arguments(policy, probe, options.env_arguments)
    probe.close()
    with EnvPool(lambda: make(options.env, **arguments), threads=options.env_threads) as pool:
        played = collect(policy, pool, episodes, deterministic=True)
    lost = fault_summary(played)
    if lost:
        print(f"  ! {lost}", flush=True)
    return played


def _judge(config: RLAIFConfig, options: GRPOConfig) -> Ask:
    """Return the model that is to judge, which takes the most probable token."""
    model, tokenizer = load_model(config.judge, dtype=options.dtype, device=pick_device(options.device))
    told = {"max_turn_tokens": config.judge_tokens, "max_episode_tokens": config.judge_context}
    policy = make_policy(model, tokenizer, options.model_copy(update={**told, "slots": 8, "temperature": 0.0}))
    return ask_policy(policy)


def _named(ask: Ask) -> str:
    """Return the name of a function that judges, or of its class: the same in every process."""
    kind = ask if hasattr(ask, "__qualname__") else type(ask)
    return f"{kind.__module__}.{kind.__qualname__}"


def _going_on(place: Path) -> dict[str, Any]:
    """Return the options with which a run goes on where it has a checkpoint, and begins again where it has none."""
    begun = bool(finished_checkpoints(place / "checkpoints"))
    return {"output_dir": place.parent, "name": place.name, "resume": begun, "overwrite": not begun}


def _keep(file: Path, played: Sequence[Trajectory]) -> None:
    with storage_errors(file.parent):
        write_jsonl(file, (trajectory_row(t) for t in played))


def _summarize(result: RLAIFResult) -> None:
    before, after = result.before, result.after
    print(f"Score {before.score:.3f} → {after.score:.3f} on the same tasks.")
    if before.accuracy and after.accuracy:
        print(f"Right answers {before.accuracy.value:.1%} → {after.accuracy.value:.1%}.")
    for warning in result.warnings:
        print(f"  ! {warning[0].upper()}{warning[1:]}.", flush=True)
    summary = {
        "judged": dict(result.judged),
        "before": before.to_json(),
        "after": after.to_json(),
        "model": str(result.model),
        "warnings": list(result.warnings),
    }
    with storage_errors(result.folder):
        (result.folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
