"""A model and an environment small enough to learn something in seconds."""

from __future__ import annotations

import ast
import gc
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

from trajgym.envs.base import ToolEnv
from trajgym.evaluation.records import read_trajectories
from trajgym.rewards import Term
from trajgym.trainers.config import GRPOConfig, load_config
from trajgym.trainers.grpo import train
from trajgym.types import Action, Message, Observation, Step, Task

DIGITS = "0123"
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>' }}{% endif %}"
)


@pytest.fixture(scope="session", autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what runs measure of this machine out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def frozen() -> Iterator[None]:
    """Keep accelerate's garbage collections, two in each run, from walking through all of torch."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of the embedded kind, one narrow layer of it; to be read only."""
    from trajgym.policies.tiny import build_model, build_tokenizer

    folder = tmp_path_factory.mktemp("small-model")
    tokenizer = build_tokenizer(["system\nuser\nassistant\ntool\n calculator <tool_call> 48 + 24"] * 9, 320)
    build_model(tokenizer, width=32, layers=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def digit_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random two-layer Llama over four digits and three control tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocab = {token: i for i, token in enumerate(["<|endoftext|>", "<|im_start|>", "<|im_end|>", *DIGITS, "?", "!"])}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in list(vocab)[:3]])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocab), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        tie_word_embeddings=False,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("digit-model")
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _identity(step: Any, task: Task, history: Any) -> float:
    return float(step.action.text.startswith(task.answer))


class IdentityEnv(ToolEnv):
    """Say the digit you are shown, first of all."""

    def __init__(self, reward: dict[str, tuple[Term, float]] | None = None, **kwargs: Any) -> None:
        tasks = [Task(f"digit-{d}", d, d) for d in DIGITS]
        rubric = {"accuracy": (_identity, 1.0)} if reward is None else reward
        super().__init__(tasks, **{"reward": rubric, "system": "", "max_turns": 1, **kwargs})


def _first(step: Any, task: Task, history: Any) -> float:
    return float(not history and step.action.text.startswith(task.answer))


def _second(step: Any, task: Task, history: Any) -> float:
    return float(len(history) == 1 and step.action.text.startswith(task.answer))


class TwiceEnv(IdentityEnv):
    """Say the digit you are shown, and again when you are asked for it; each time pays."""

    def __init__(self, **kwargs: Any) -> None:
        rubric: dict[str, tuple[Term, float]] = {"first": (_first, 0.5), "second": (_second, 1.0)}
        super().__init__(rubric, **{"max_turns": 2, **kwargs})

    def _transition(self, action: str) -> Step:
        if self._steps:
            return super()._transition(action)
        assert self._task is not None
        return Step(Action(action), Observation((Message("user", self._task.question),)))


class NotedEnv(IdentityEnv):
    """Say the digit you are shown; of that dialogue only what you said is left in the next, which wants the digit."""

    def __init__(self, **kwargs: Any) -> None:
        # As long as notes say nothing, pay for the second dialogue is noise: the notes have to be worth more.
        rubric: dict[str, tuple[Term, float]] = {"noted": (_first, 0.7), "accuracy": (_second, 0.3)}
        super().__init__(rubric, **{"max_turns": 2, "system": "!", **kwargs})

    def _transition(self, action: str) -> Step:
        if self._steps:
            return super()._transition(action)
        return Step(Action(action), Observation((Message("system", self.system), Message("user", action[:1] or "?"))))


def _nothing(step: Any, task: Task, history: Any) -> float:
    return 0.0


class NothingEnv(IdentityEnv):
    """Nothing that is said here pays."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__({"nothing": (_nothing, 1.0)}, **kwargs)


gymnasium.register("TestIdentity-v0", entry_point=IdentityEnv)
gymnasium.register("TestTwice-v0", entry_point=TwiceEnv)
gymnasium.register("TestNoted-v0", entry_point=NotedEnv)
gymnasium.register("TestNothing-v0", entry_point=NothingEnv)


@pytest.fixture
def identity_options(digit_model: Path, tmp_path: Path) -> dict[str, Any]:
    """Options of a run on the identity environment."""
    return {
        "model": str(digit_model),
        "env": "TestIdentity-v0",
        "updates": 2,
        "groups_per_update": 4,
        "num_generations": 8,
        "slots": 32,
        "max_turn_tokens": 6,
        "max_episode_tokens": 24,
        "learning_rate": 5e-3,
        "kl_coef": 0.0,
        "output_dir": str(tmp_path / "runs"),
        "monitors": (),
        "log_trajectories": 4,
    }


class LeftBehind(NamedTuple):
    """What a run leaves, without what the clock says and without which worker died."""

    metrics: list[dict[str, Any]]
    weights: dict[str, torch.Tensor]
    played: list[Any]


def _left_behind(folder: Path) -> LeftBehind:
    strange = ("time/", "efficiency/", "memory/", "faults/RolloutWorker")
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    metrics = [{k: v for k, v in line.items() if not k.startswith(strange)} for line in lines]
    newest = sorted((folder / "checkpoints").glob("update-*"))[-1]
    weights = load_file(next((newest / "model").glob("*.safetensors")))
    played = [read_trajectories(path) for path in sorted((folder / "trajectories").glob("update-*.jsonl"))]
    return LeftBehind(metrics, weights, played)


@pytest.fixture
def left_behind() -> Callable[[Path], LeftBehind]:
    """Read what a run has left in its folder, as far as it must be the same for the same run."""
    return _left_behind


@pytest.fixture
def check_same() -> Callable[[Path, Path], None]:
    """Check that two folders hold the same run, bit for bit."""

    def check(one: Path, other: Path) -> None:
        left, right = _left_behind(one), _left_behind(other)
        assert left.metrics == right.metrics
        assert left.weights.keys() == right.weights.keys()
        assert all(torch.equal(left.weights[k], right.weights[k]) for k in left.weights)
        assert left.played == right.played

    return check


class SmallRuns:
    """Trains on the identity environment, each time in a new place.

    Args:
        model: What to train.
        places: Where.
    """

    def __init__(self, model: Path, places: pytest.TempPathFactory) -> None:
        self._places, self._known = places, dict[str, LeftBehind]()
        self._base = {
            "model": str(model), "device": "cpu", "env": "TestIdentity-v0", "updates": 1, "groups_per_update": 4,
            "num_generations": 8, "slots": 32, "max_turn_tokens": 6, "max_episode_tokens": 24, "learning_rate": 5e-3,
            "kl_coef": 0.0, "log_trajectories": 32, "monitors": (),
        }  # fmt: skip

    def config(self, **changes: Any) -> GRPOConfig:
        return load_config(self._base | {"output_dir": str(self._places.mktemp("run"))} | changes)

    def __call__(self, **changes: Any) -> Path:
        return train(self.config(**changes))

    def differ(self, what: str, key: str, value: Any, needed: dict[str, Any]) -> bool:
        """Whether an option changes ``weights``, or what is ``played`` in the first update.

        Args:
            what: One of the two.
            key: The option.
            value: Given to it.
            needed: What stands in both runs, that the option can act.
        """
        usual = json.dumps(needed, sort_keys=True)
        if usual not in self._known:  # many rows are compared with the same run
            self._known[usual] = _left_behind(self(**needed))
        one, other = self._known[usual], _left_behind(self(**needed | {key: value}))
        if what == "played":
            return bool(one.played[0] != other.played[0])
        left, right = one.weights, other.weights
        return left.keys() != right.keys() or any(not torch.equal(left[k], right[k]) for k in left)


@pytest.fixture(scope="module")
def small_runs(digit_model: Path, tmp_path_factory: pytest.TempPathFactory) -> SmallRuns:
    return SmallRuns(digit_model, tmp_path_factory)


@pytest.fixture(scope="session")
def shown_in() -> Callable[[str, str], None]:
    """Check that a test beside this file, FILE::TEST, speaks of an option and runs without -m slow."""

    def check(named: str, key: str) -> None:
        file, _, name = named.partition("::")
        module = ast.parse((Path(__file__).parent / file).read_text(encoding="utf-8")).body
        (test,) = (node for node in module if isinstance(node, ast.FunctionDef) and node.name == name)
        tables = {ast.unparse(target): value for node in module for target, value in _assigned(node)}
        # Of the cases that a mark lists some may be slow while others are not.
        marks = [*test.decorator_list, *([tables["pytestmark"]] if "pytestmark" in tables else [])]
        assert not any(_names(mark, "slow") for mark in marks if not _names(mark, "parametrize")), f"{named} is slow"
        texts = [ast.unparse(test)]
        for text in texts:  # a test speaks of what stands in the tables that it names, too
            texts += [ast.unparse(tables.pop(word)) for word in set(re.findall(r"\w+", text)) & tables.keys()]
        assert any(re.search(rf"\b{key}\b", text) for text in texts), f"{named} does not speak of {key}"

    return check


def _assigned(node: ast.stmt) -> list[tuple[ast.expr, ast.expr]]:
    """Return names that a statement of a module gives to values."""
    if isinstance(node, ast.Assign):
        return [(target, node.value) for target in node.targets]
    return [(node.target, node.value)] if isinstance(node, ast.AnnAssign) and node.value else []


def _names(mark: ast.expr, attribute: str) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr == attribute for node in ast.walk(mark))


_RANK = """
import json, os, signal, sys, time
sys.path.insert(0, {tests!r})
import conftest
from trajgym.envs.base import ToolEnv
from trajgym.errors import RewardError
from trajgym.trainers.config import load_config
from trajgym.trainers import grpo
rank = int(os.environ["RANK"])
trainer = None
{extra}
grpo.train(load_config(json.loads({options!r})))
"""


@pytest.fixture
def launch(identity_options: dict[str, Any]) -> Iterator[Callable[..., list[subprocess.Popen[str]]]]:
    """Start a run on two processes of this machine, with code of one's own and further variables and options."""
    running: list[subprocess.Popen[str]] = []

    def start(
        extra: str = "", *, variables: dict[str, str] | None = None, **options: Any
    ) -> list[subprocess.Popen[str]]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        code = _RANK.format(
            tests=str(Path(__file__).parent), extra=extra, options=json.dumps({**identity_options, **options})
        )
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}
        begun = [
            subprocess.Popen(
                [sys.executable, "-c", code],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={
                    **os.environ,
                    **shared,
                    **(variables or {}),
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": "2",
                    "LOCAL_WORLD_SIZE": "2",
                },
            )
            for rank in range(2)
        ]
        running.extend(begun)
        return begun

    yield start
    for process in running:
        process.kill()
        process.communicate()
