"""Data sets in the three formats of the chain: raw problems, rows to imitate, and rows to be rewarded on.

- **raw**: ``question``, ``answer`` (the worked solution with the final answer behind ``####``, or the answer alone)
- **SFT**: ``prompt``, ``completion``, ``text`` (both together)
- **RL**: ``prompt``, ``ground_truth``, ``question``, ``full_answer``

A prompt is a text in the model's own template, the same bytes in both formats and in the environment, up to where the
assistant's turn begins. A completion ends with the model's end-of-turn token. Of an RL row the policy sees the prompt
alone: ``full_answer`` is there for rewards and for people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajgym.envs.gsm8k_solution import annotated, demonstration
from trajgym.envs.gsm8k_tasks import GSM8KTasks
from trajgym.errors import DataError, UnknownNameError
from trajgym.trainers.data_prompts import Prompter, load_tokenizer
from trajgym.trainers.data_quality import FORMATS, check_quality, require_columns
from trajgym.trainers.data_rows import fingerprint, solution_of, steps_of, subset
from trajgym.trainers.data_sources import DatasetLike, Loaded, Row, load_rows, register_dataset
from trajgym.types import Task

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = [
    "GSM8K_ROWS",
    "GSM8KDataset",
    "create_rl_dataset",
    "create_sft_dataset",
    "format_math_dataset",
    "register_dataset",
    "tasks_of",
]

GSM8K_ROWS: Mapping[str, int] = {"train": 7473, "test": 1319}
"""How many rows each split of GSM8K has."""

_ENV = "GSM8KTool-v0"
_KINDS = ("raw", "sft", "rl")


class GSM8KDataset:
    """The GSM8K problems in one of the three formats.

    Nothing is read before it is asked for. The data come from ``path``, from ``$TRAJGYM_DATA/gsm8k``, or from the
    Hugging Face hub. Source: Cobbe et al. 2021, arXiv 2110.14168.

    Args:
        split: ``"train"`` or ``"test"``.
        max_samples: How many rows, chosen by ``seed``; all when ``None``. See
            :func:`trajgym.trainers.data_rows.subset`.
        format_type: ``"raw"``, ``"sft"`` or ``"rl"``.
        model_name: Whose template the prompts are in.
        path: A ``.jsonl`` file, or a folder with ``train.jsonl`` and ``test.jsonl``.
        seed: Decides which rows ``max_samples`` takes.
        **options: As for :func:`format_math_dataset`.

    Raises:
        UnknownNameError: For another split or format.
        DataError: When ``path`` does not exist.
    """

    def __init__(
        self,
        split: str = "train",
        max_samples: int | None = None,
        format_type: str = "sft",
        model_name: str = "tiny",
        *,
        path: str | Path | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        if format_type not in _KINDS:
            raise UnknownNameError("format_type", format_type, _KINDS)
        self.split, self.max_samples, self.seed = split, max_samples, seed
        self.format_type, self.model_name = format_type, model_name
        self._options = options
        self._source = GSM8KTasks(split, path=path)
        self._rows: list[Row] | None = None

    @property
    def rows(self) -> Sequence[Row]:
        """The chosen problems in the raw format."""
        if self._rows is None:
            everything = [{"question": t.question, "answer": t.metadata["full_answer"]} for t in self._source]
            self._rows = subset(everything, self.max_samples, seed=self.seed)
        return self._rows

    @property
    def complete(self) -> bool:
        """Whether these are all rows of the split that there are in GSM8K."""
        return len(self.rows) == GSM8K_ROWS[self.split]

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the chosen problems, whatever their format."""
        return fingerprint(self.rows)

    def tasks(self) -> list[Task]:
        """Return the chosen problems as tasks for ``gym.make(..., tasks=…)``."""
        return tasks_of(self.rows, name=f"gsm8k/{self.split}")

    def load(self) -> Dataset:
        """Return the rows in the chosen format.

        Raises:
            DataError: When no data are found or a row cannot be used.
            ConfigError: When the model's tokenizer cannot be loaded, or an option is wrong.
            TemplateError: When the model's template cannot be followed.
        """
        if self.format_type == "raw":
            return _dataset(self.rows)
        loaded = Loaded(f"gsm8k/{self.split}", self.rows)
        return format_math_dataset(loaded, self.format_type, self.model_name, **self._options)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]


def create_sft_dataset(
    max_samples: int | None = None,
    split: str = "train",
    *,
    dataset: DatasetLike = "gsm8k",
    model_name: str = "tiny",
    seed: int = 0,
    **options: Any,
) -> Dataset:
    """Return problems as rows to imitate: ``prompt``, ``completion``, ``text``.

    Args:
        max_samples: How many rows, chosen by ``seed``; all when ``None``. Start small: 100 to 1,000.
        split: ``"train"`` or ``"test"``.
        dataset: Problems in the raw format; see :func:`trajgym.trainers.data_sources.load_rows`.
        model_name: Whose template the prompts are in: ``"tiny"``, a folder, or a hub id.
        seed: Decides which rows ``max_samples`` takes.
        **options: As for :func:`format_math_dataset`.

    Raises:
        UnknownNameError, ConfigError, DataError, TemplateError: As :func:`format_math_dataset`.
    """
    return _created(dataset, "sft", model_name, max_samples, split, seed, options)


def create_rl_dataset(
    max_samples: int | None = None,
    split: str = "train",
    *,
    dataset: DatasetLike = "gsm8k",
    model_name: str = "tiny",
    seed: int = 0,
    **options: Any,
) -> Dataset:
    """Return problems as rows to be rewarded on: ``prompt``, ``ground_truth``, ``question``, ``full_answer``.

    With the same arguments these are the rows of :func:`create_sft_dataset`, in the same order, with the same prompts.

    Args:
        max_samples: How many rows, chosen by ``seed``; all when ``None``.
        split: ``"train"`` or ``"test"``.
        dataset: Problems in the raw format; see :func:`trajgym.trainers.data_sources.load_rows`.
        model_name: Whose template the prompts are in: ``"tiny"``, a folder, or a hub id.
        seed: Decides which rows ``max_samples`` takes.
        **options: As for :func:`format_math_dataset`.

    Raises:
        UnknownNameError, ConfigError, DataError, TemplateError: As :func:`format_math_dataset`.
    """
    return _created(dataset, "rl", model_name, max_samples, split, seed, options)


def format_math_dataset(
    dataset: DatasetLike | Loaded,
    format_type: str = "sft",
    model_name: str = "tiny",
    *,
    split: str = "train",
    tokenizer: Any = None,
    env: str = _ENV,
    env_kwargs: Mapping[str, Any] | None = None,
    thinking: bool = False,
    numeric: bool = True,
) -> Dataset:
    """Turn rows with ``question`` and ``answer`` into rows for training.

    Args:
        dataset: The rows; see :func:`trajgym.trainers.data_sources.load_rows`.
        format_type: ``"sft"`` or ``"rl"``.
        model_name: Whose template the prompts are in: ``"tiny"``, a folder, or a hub id.
        split: Which part of the data set.
        tokenizer: The model's tokenizer, where it is loaded already.
        env: Id of the environment whose system message the prompts have: the one to train and evaluate in.
        env_kwargs: The environment's arguments.
        thinking: Whether the template opens a block for reasoning, as in the trainer's option of this name.
        numeric: Whether the truth must be a number; rewards of your own may read other truths.

    Raises:
        UnknownNameError: For another format, and for a data set or an environment that does not exist.
        ConfigError: When the tokenizer cannot be loaded.
        DataError: When a column is missing, a value is empty, a row occurs twice, a truth cannot be read, or a text
            holds a control token; names the row.
        TemplateError: When the model's template cannot be followed.
    """
    if format_type not in ("sft", "rl"):
        raise UnknownNameError("format_type", format_type, ("sft", "rl"))
    data = dataset if isinstance(dataset, Loaded) else load_rows(dataset, split=split)
    require_columns(data, FORMATS["raw"])
    check_quality(Loaded(data.name, [_raw(row) for row in data.rows]), numeric=numeric, near=None).require()
    prompter = Prompter(
        load_tokenizer(model_name) if tokenizer is None else tokenizer,
        env=env,
        env_kwargs=env_kwargs,
        thinking=thinking,
    )
    make = _sft_row if format_type == "sft" else _rl_row
    return _dataset([make(row, prompter, data.place(i)) for i, row in enumerate(data.rows)])


def tasks_of(rows: Sequence[Row], *, name: str = "data") -> list[Task]:
    """Return rows in the raw or RL format as tasks for ``gym.make(..., tasks=…)``.

    A solution with calculator annotations becomes a demonstration. Further columns stand in the tasks' metadata, where
    reward functions find them.

    Args:
        rows: The rows.
        name: Begins the tasks' ids: ``name/0``, ``name/1``, …

    Raises:
        DataError: When a row has no question, or no truth.
    """
    tasks = []
    for i, row in enumerate(rows):
        question, full = row.get("question"), solution_of(row)
        answer = row.get("ground_truth", _final(full))
        if not isinstance(question, str) or not question.strip() or not isinstance(answer, str) or not answer.strip():
            raise DataError(f"{name}, row {i + 1}: a task needs a question and an answer, got columns {list(row)}.")
        columns = {k: v for k, v in row.items() if k not in ("question", "answer", "prompt", "ground_truth")}
        tasks.append(
            Task(
                f"{name}/{i}",
                question,
                answer,
                solution=demonstration(full, answer) if annotated(full) else (),
                difficulty=steps_of(row) or None,
                metadata={**columns, "full_answer": full},
            )
        )
    return tasks


def _created(
    dataset: DatasetLike,
    format_type: str,
    model_name: str,
    max_samples: int | None,
    split: str,
    seed: int,
    options: Mapping[str, Any],
) -> Dataset:
    loaded = load_rows(dataset, split=split)
    chosen = Loaded(loaded.name, subset(loaded.rows, max_samples, seed=seed))
    return format_math_dataset(chosen, format_type, model_name, **options)


def _sft_row(row: Row, prompter: Prompter, where: str) -> dict[str, str]:
    prompt = prompter.prompt(row["question"], where)
    completion = prompter.completion(row["answer"], where)
    return {"prompt": prompt, "completion": completion, "text": prompt + completion}


def _rl_row(row: Row, prompter: Prompter, where: str) -> dict[str, str]:
    return {
        "prompt": prompter.prompt(row["question"], where),
        "ground_truth": _final(row["answer"]),
        "question": row["question"],
        "full_answer": row["answer"],
    }


def _raw(row: Row) -> Row:
    return {"question": row["question"], "answer": row["answer"]}


def _final(answer: str) -> str:
    """Return the final answer of a worked solution: what stands behind the last marker, or everything."""
    final = answer.rpartition("####")[2].strip()
    return final.replace(",", "") if final.replace(",", "").lstrip("-").isdigit() else final


def _dataset(rows: Sequence[Row]) -> Dataset:
    from datasets import Dataset

    return Dataset.from_list([dict(row) for row in rows])
