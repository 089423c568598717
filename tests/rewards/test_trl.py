"""A real GRPOTrainer of TRL takes terms, rubrics and registered functions as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trajgym.policies import tiny_path
from trajgym.rewards import Rubric, Schedule, StepReward, accuracy, get_reward_function
from trajgym.types import Step, Task

pytest.importorskip("trl")


def brevity(step: Step, task: Task, history: Any) -> float:
    return 1.0 / (1 + len(step.action.text))


class Recorded:
    """A reward function that keeps what the trainer passed and what it got back."""

    def __init__(self, reward: Any, name: str) -> None:
        self.reward, self.__name__ = reward, name
        self.calls: list[tuple[dict[str, Any], list[float]]] = []

    def __call__(self, **columns: Any) -> list[float]:
        values = self.reward(**columns)
        self.calls.append((columns, values))
        return values


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("chat", [False, True], ids=["texts", "messages"])
def test_one_step_of_grpo(tmp_path: Path, chat: bool) -> None:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    questions = ["What is 48 + 24?", "What is 1 + 1?"]
    prompts = [[{"role": "user", "content": q}] for q in questions] if chat else questions
    rows = [{"prompt": p, "answer": a, "level": n} for n, (p, a) in enumerate(zip(prompts, ["72", "2"], strict=True))]
    fading = Schedule([(0.0, 1.0), (1.0, 0.0)])
    rubric = Recorded(Rubric({"accuracy": (accuracy, 1.0), "brevity": (brevity, fading)}), "rubric")
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(tiny_path()),
        reward_funcs=[rubric, accuracy, StepReward(), get_reward_function("partial_credit")],
        args=GRPOConfig(
            output_dir=str(tmp_path), per_device_train_batch_size=4, num_generations=2, max_completion_length=8,
            max_steps=2, use_cpu=True, bf16=False, report_to=[], logging_steps=1, save_strategy="no", seed=0,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(tiny_path()),
    )  # fmt: skip
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "rewards/rubric/mean" in entry]
    assert len(logs) == len(rubric.calls) == 2
    for done, (log, (columns, values)) in enumerate(zip(logs, rubric.calls, strict=True)):
        texts = [c[0]["content"] if chat else c for c in columns["completions"]]
        assert {"prompts", "completions", "completion_ids", "answer", "level", "trainer_state"} <= columns.keys()
        brief = [(1.0 - done / 2) / (1 + len(text)) for text in texts]  # half of the run, half of the weight
        right = accuracy(texts, answer=columns["answer"])
        assert values == [pytest.approx(r + b) for r, b in zip(right, brief, strict=True)]
        assert log["rewards/rubric/mean"] == pytest.approx(sum(values) / 4, rel=1e-4)
        assert log["reward_parts/brevity"] == pytest.approx(sum(brief) / 4, rel=1e-4)
        assert {"rewards/accuracy/mean", "rewards/StepReward/mean"} <= log.keys()
