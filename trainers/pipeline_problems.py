"""What a chain trains on and what it is measured on, and that nothing is both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trajgym.envs.make import make
from trajgym.envs.tasks import FiniteTasks
from trajgym.errors import DataError
from trajgym.evaluation.selection import tasks_of
from trajgym.rollout_replies import read_reset
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.data_quality import check_quality
from trajgym.trainers.data_rows import fingerprint
from trajgym.trainers.data_sources import Loaded, Row, load_rows
from trajgym.trainers.pipeline_config import PipelineConfig
from trajgym.trainers.pipeline_leaks import require_apart
from trajgym.trainers.schedule import TaskSchedule
from trajgym.trainers.sft_config import SFTConfig
from trajgym.trainers.sft_rows import demonstrated, split_samples
from trajgym.types import Task

__all__ = ["Problems", "drawn_by_grpo", "find_problems"]


@dataclass(frozen=True)
class Problems:
    """What a chain trains on and what it is measured on.

    Args:
        train: Problems to train on: the first of a data set; of those that never end, the ones whose demonstrations SFT
            imitates, none where it imitates none. GRPO draws others of these, see :func:`drawn_by_grpo`.
        test: Problems to measure on.
        available: How many there are to train on in all; ``None`` where they never end.
        arguments: The environment's arguments, to measure with.
        rows: What SFT imitates, where that is no demonstration of the environment's own.
        imitated: Fingerprint of the whole data set that these rows are from.
    """

    train: Sequence[Task]
    test: Sequence[Task]
    available: int | None
    arguments: Mapping[str, Any]
    rows: Loaded | None = None
    imitated: str | None = None

    @property
    def fingerprints(self) -> dict[str, str | None]:
        """What tells them from others."""
        return {
            "train": _hash(self.train) if self.train else None,
            "test": _hash(self.test),
            "imitated": self.imitated,
        }

    @property
    def row_count(self) -> int | None:
        """How many rows SFT imitates in place of demonstrations."""
        return None if self.rows is None else len(self.rows.rows)

    def check(self, drawn: Iterable[Task] = ()) -> dict[str, Any]:
        """Look for what would spoil the chain, and return what is worth knowing of the problems.

        Args:
            drawn: The problems that GRPO will draw, where they never end.

        Raises:
            DataError: When problems are empty, or are both trained and measured on.
        """
        test = Loaded("the test problems", _asked(self.test))
        check_quality(test, numeric=False, near=None).require()
        found = []
        if self.train:
            # What is made up may come twice; in a data set that is a mistake.
            once = {(task.question, task.answer): task for task in self.train}
            train = self.train if self.available is not None else list(once.values())
            quality = check_quality(Loaded("the train problems", _asked(train)), splits=[test], numeric=False)
            quality.require()
            found += [finding.what for finding in quality.findings]
        if self.rows is not None:
            quality = check_quality(self.rows, splits=[test])
            quality.require()
            require_apart(self.rows, test)
            found += [f"{self.rows.name}: {finding.what}" for finding in quality.findings]
        steps: dict[str, int] = {}
        for task in self.train:
            level = "unknown" if task.difficulty is None else str(task.difficulty)
            steps[level] = steps.get(level, 0) + 1
        return {
            "train": len(self.train),
            "train_available": self.available,
            "rows": self.row_count,
            "drawn": None if self.available is not None else self._look_through(drawn),
            "test": len(self.test),
            "steps": dict(sorted(steps.items())),
            "findings": found,
            "fingerprints": self.fingerprints,
        }

    def _look_through(self, drawn: Iterable[Task]) -> int:
        """Return how many problems GRPO draws, none of which is measured on."""
        measured = {_plain(task.question) for task in self.test}
        count, leaked = 0, list[Task]()
        for task in drawn:
            count += 1
            leaked += [task] if _plain(task.question) in measured else []
        if leaked:
            raise DataError(
                f"GRPO would draw {len(leaked)} problems that are measured on (the first: {leaked[0].question!r:.80}). "
                "Measure on another part (eval.split), or allow for more problems in data.env_kwargs."
            )
        return count


def find_problems(config: PipelineConfig, sft: SFTConfig | None) -> Problems:
    """Read or draw the problems that the options name.

    Args:
        config: The options of the chain.
        sft: Those of its SFT stage, if it has one.

    Raises:
        ConfigError: For an environment or an argument that does not exist, or too few problems of that kind.
        DataError: When there are no data, or they cannot be read.
    """
    data = config.data
    given = ({} if data.protocol == "auto" else {"protocol": data.protocol}) | data.env_kwargs
    env = make(data.env, **given)
    source: Any = getattr(env.unwrapped, "tasks", None)
    weights = getattr(getattr(env.unwrapped, "rubric", None), "weights", {})
    env.close()
    available = len(source) if isinstance(source, FiniteTasks) else None
    train: Sequence[Task] = ()
    if available is not None:
        train = list(source)[: data.max_samples]
    elif sft is not None and sft.dataset == "expert":
        count = None if sft.max_samples is None else sft.max_samples + (0 if sft.eval_split else sft.eval_samples)
        train = demonstrated(sft, source, count)[: sft.max_samples]
    # What is trained for may not say who was right; an evaluation has to.
    arguments = {**given, "split": config.eval.split, **({} if "accuracy" in weights else {"reward": "sparse"})}
    measured = make(data.env, **arguments)
    test = tasks_of(measured, config.eval.max_samples, seed=config.seed)
    measured.close()
    if sft is None or sft.dataset == "expert":
        return Problems(train, test, available, arguments)
    loaded = load_rows(sft.dataset)
    check_quality(loaded, near=None).require()
    chosen = loaded.rows[: sft.max_samples] if sft.eval_split else split_samples(sft, loaded.rows).train
    rows = Loaded(loaded.name, [row for row in chosen if isinstance(row, Mapping)])
    return Problems(train, test, available, arguments, rows, fingerprint(loaded.rows))


def drawn_by_grpo(config: GRPOConfig) -> Iterator[Task]:
    """Draw the problems that GRPO will play, where the environment makes them up; nothing where they are a data set.

    Args:
        config: The options of GRPO; the seed decides the draws, so these are the very ones.
    """
    env = make(config.env, **config.env_arguments)
    schedule = TaskSchedule(env, config)
    try:
        for update in range(schedule.total):
            for turn in range(config.dynamic_sampling + 1):
                for episode in schedule.episodes(update, turn)[:: config.num_generations]:
                    if episode.task is not None:
                        return
                    yield read_reset(episode.seed, env.reset(seed=episode.seed))[0]
    finally:
        env.close()


def _asked(tasks: Sequence[Task]) -> list[Row]:
    return [{"question": task.question, "answer": task.answer} for task in tasks]


def _plain(question: str) -> str:
    return " ".join(question.split())


def _hash(tasks: Sequence[Task]) -> str:
    return fingerprint([{"id": t.id, "question": t.question, "answer": t.answer} for t in tasks])
