"""Every option of what a run plays, how, and what it leaves has an effect: one row for each."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import trajgym  # noqa: F401  # registers the environments
from trajgym.envs.base import ToolEnv
from trajgym.errors import ConfigError
from trajgym.policies.render import Renderer
from trajgym.trainers import grpo, models, ray_player, rollout_share, worker
from trajgym.trainers.config import GRPOConfig
from trajgym.trainers.grpo import GRPOTrainer
from trajgym.trainers.models import pick_device
from trajgym.trainers.ranks import Ranks

pytestmark = pytest.mark.usefixtures("frozen")

# Options that decide what is played in the first update: a value, and what the row needs besides.
PLAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "env": ("TestTwice-v0", {}),
    "env_kwargs": ({"system": "!"}, {}),
    "groups_per_update": (2, {}),
    "max_episode_tokens": (7, {"max_turn_tokens": 5}),
    "max_turn_tokens": (3, {}),
    "num_generations": (4, {}),
    "seed": (3, {}),
    "temperature": (0.3, {}),
}

# Options that decide what the weights become.
LEARNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "algorithm": ("ppo", {}),
    "dtype": ("bfloat16", {}),
    "inner_epochs": (2, {}),
    "minibatches": (2, {}),
    "rollout_ahead": (1, {"sampler_correction": True, "updates": 2}),
}

# Options that a test elsewhere is about.
SHOWN = {
    "dynamic_sampling": "test_algorithms.py::test_dynamic_sampling_goes_on_until_groups_differ",
    "epochs": "test_grpo.py::test_epochs_deal_every_task_once",
    "fault_alarm": "test_faults.py::test_the_share_that_is_warned_of",
    "fault_limit": "test_faults.py::test_budgets_that_cut_every_trajectory_are_told_from_faults",
    "max_samples": "test_grpo.py::test_epochs_deal_every_task_once",
    "protocol": "test_protocol.py::test_a_form_that_nobody_reads_is_refused_at_the_start",
    "protocol_mismatch": "test_protocol.py::test_another_protocol_than_the_templates_is_refused_at_the_start",
    "rollout_workers": "test_ray_player.py::test_who_plays_what_does_not_matter",
    "sampler": "test_samplers.py::test_the_engine_has_the_weights_of_each_update",
    "worker_groups": "test_ray_player.py::test_one_piece_is_what_this_process_would_play",
}


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def _differs(what: str, key: str, row: tuple[Any, dict[str, Any]]) -> Callable[..., None]:
    def check(run: Any, **_: Any) -> None:
        assert run.differ(what, key, *row)

    return check


def _shown(key: str) -> Callable[..., None]:
    return lambda shown_in, **_: shown_in(SHOWN[key], key)


def _model(run: Any, small_model: Path, left_behind: Callable[[Path], Any], **_: Any) -> None:
    other = run(model=str(small_model), max_episode_tokens=64)
    assert left_behind(other).weights.keys() != left_behind(run()).weights.keys()  # one layer, not two


def _device(run: Any, **_: Any) -> None:
    with pytest.raises(ConfigError, match="cuda:99"):
        run(device="cuda:99")


def _quantization(run: Any, monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)  # as where it is not installed
    with pytest.raises(ConfigError, match="quantization 8bit needs bitsandbytes"):
        run(quantization="8bit", use_lora=True)


def _thinking(run: Any, monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    made: list[bool] = []
    plain = Renderer.__init__

    def init(self: Renderer, tokenizer: Any, *, thinking: bool = False, **kwargs: Any) -> None:
        made.append(thinking)
        plain(self, tokenizer, **kwargs)

    monkeypatch.setattr(Renderer, "__init__", init)
    GRPOTrainer(run.config(thinking=True))
    assert made == [True]  # what that means for prompts is the renderer's business, and tested there


def _updates(run: Any, **_: Any) -> None:
    assert [line["update"] for line in lines(run(updates=3))] == [1, 2, 3]


def _slots(run: Any, monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    live: set[int] = set()
    plain = ToolEnv.step

    def step(self: ToolEnv, action: str) -> Any:
        live.add(id(self))
        return plain(self, action)

    monkeypatch.setattr(ToolEnv, "step", step)
    for slots in (3, 8):
        live.clear()
        run(slots=slots)
        assert len(live) == slots  # 32 episodes, in so many environments


def _env_threads(run: Any, monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    seen: set[threading.Thread] = set()
    plain = ToolEnv.step

    def step(self: ToolEnv, action: str) -> Any:
        seen.add(threading.current_thread())
        return plain(self, action)

    monkeypatch.setattr(ToolEnv, "step", step)
    run(env_threads=0)
    assert seen == {threading.main_thread()}
    seen.clear()
    run(env_threads=2)
    assert threading.main_thread() not in seen
    assert len(seen) <= 2


def _deterministic(run: Any, monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    told: list[bool] = []
    plain: Any = vars(rollout_share)["collect"]

    def collect(*args: Any, deterministic: bool, **kwargs: Any) -> Any:
        told.append(deterministic)
        return plain(*args, deterministic=deterministic, **kwargs)

    monkeypatch.setattr(rollout_share, "collect", collect)
    for wanted in (True, False):
        run(deterministic=wanted)
    assert told == [True, False]  # what that means is the rollout's business, and tested there


class Asked(Exception):
    """Carries what something was asked for, which then is not needed any more."""


def _sampler_options(run: Any, monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    def ask(options: Any, **kwargs: Any) -> None:
        raise Asked(options.url, options.attempts)

    monkeypatch.setattr("trajgym.policies.vllm_server.VLLMServerSampler", ask)
    with pytest.raises(Asked) as asked:
        run(sampler="vllm_server", sampler_options={"url": "http://there", "attempts": 7}, sampler_correction=True)
    assert asked.value.args == ("http://there", 7)


def _crew(run: Any, monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    def hire(plan: bytes, **asked: Any) -> None:
        raise Asked(asked)

    threads: list[int] = []
    monkeypatch.setattr(ray_player, "require_ray", lambda: None)
    monkeypatch.setattr(ray_player, "RayCrew", hire)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(models, "pick_device", lambda name: pick_device("cuda:99" if name == "cuda" else name))
    told = {"rollout_workers": 2, "worker_cpus": 3, "worker_gpus": 0.5, "ray_address": "there:1"}
    with pytest.raises(Asked) as asked:
        run(**told)
    assert asked.value.args == ({"count": 2, "cpus": 3, "gpus": 0.5, "address": "there:1"},)
    with pytest.raises(ConfigError, match="cuda:99"):  # a part of a GPU is one, and this machine need not have any
        object.__new__(worker.RolloutWorker)._make(run.config(**told), {}, values=False)
    assert threads[-1] == 3


def _group_deadline(run: Any, monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    go_on, plain = threading.Event(), ToolEnv.step

    def step(self: ToolEnv, action: str) -> Any:
        if self._task is not None and self._task.id == "digit-0":
            go_on.wait(30)  # without a deadline it is waited for
        return plain(self, action)

    monkeypatch.setattr(ToolEnv, "step", step)
    try:
        (line,) = lines(run(group_deadline=0.2, env_threads=32))
    finally:
        go_on.set()
    assert line["fault_share"] > 0


def _rank_deadline(run: Any, monkeypatch: pytest.MonkeyPatch, **_: Any) -> None:
    told: list[float] = []

    def ranks(*, cpu: bool, deadline: float) -> Ranks:
        told.append(deadline)
        return Ranks(cpu=cpu, deadline=deadline)

    def workers(crew: Any, count: int, limit: int, deadline: float) -> None:
        raise Asked(deadline)

    monkeypatch.setattr(grpo, "Ranks", ranks)
    monkeypatch.setattr(ray_player, "require_ray", lambda: None)
    monkeypatch.setattr(ray_player, "RayCrew", lambda plan, **asked: None)
    monkeypatch.setattr(ray_player, "Workers", workers)
    with pytest.raises(Asked, match="7"):
        run(rollout_workers=1, rank_deadline=7.0)
    assert told == [7.0]  # what either does when it has passed is tested where they are


def _output_dir(run: Any, tmp_path: Path, **_: Any) -> None:
    assert GRPOTrainer(run.config(output_dir=str(tmp_path / "here"))).folder.path.parent == tmp_path / "here"


def _name(run: Any, **_: Any) -> None:
    assert GRPOTrainer(run.config()).folder.path.name == "run-seed0"
    assert GRPOTrainer(run.config(name="mine")).folder.path.name == "mine"


def _resume_overwrite(run: Any, tmp_path: Path, **_: Any) -> None:
    where = {"output_dir": str(tmp_path)}
    (run(**where) / "mark").touch()
    with pytest.raises(ConfigError, match="holds a run already"):
        run(**where)
    assert (run(**where, resume=True) / "mark").exists()
    assert not (run(**where, overwrite=True) / "mark").exists()


def _kept(run: Any, **options: Any) -> list[str]:
    return sorted(path.name[-1] for path in (run(updates=3, **options) / "checkpoints").iterdir())


def _save_every(run: Any, **_: Any) -> None:
    assert _kept(run) == ["3"]
    assert _kept(run, save_every=2) == ["2", "3"]


def _keep_checkpoints(run: Any, **_: Any) -> None:
    assert _kept(run, save_every=1, keep_checkpoints=1) == ["3"]
    assert _kept(run, save_every=1, keep_checkpoints=3) == ["1", "2", "3"]


def _log_trajectories(run: Any, **_: Any) -> None:
    for count in (0, 3):
        file = run(log_trajectories=count) / "trajectories" / "update-000001.jsonl"
        assert len(file.read_text().splitlines() if file.exists() else []) == count


def _monitors(run: Any, **_: Any) -> None:
    assert not list(run().glob("events*"))
    assert list(run(monitors=["tensorboard"]).glob("events*"))


def _printed(run: Any, capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    capsys.readouterr()
    run(**options)
    return capsys.readouterr().out


def _log_every(run: Any, capsys: pytest.CaptureFixture[str], **_: Any) -> None:
    assert re.findall(r"(\d)/3 ", _printed(run, capsys, updates=3, log_every=2)) == ["2", "3"]
    assert re.findall(r"(\d)/3 ", _printed(run, capsys, updates=3)) == ["1", "2", "3"]


def _progress(run: Any, capsys: pytest.CaptureFixture[str], **_: Any) -> None:
    assert "KL/token" in _printed(run, capsys)  # the head of a table
    line = _printed(run, capsys, progress="line")
    assert "Step 1/1" in line
    assert "KL/token" not in line


KEYS: dict[str, Callable[..., None]] = {
    **{key: _differs("played", key, row) for key, row in PLAYS.items()},
    **{key: _differs("weights", key, row) for key, row in LEARNS.items()},
    **{key: _shown(key) for key in SHOWN},
    "deterministic": _deterministic,
    "device": _device,
    "env_threads": _env_threads,
    "group_deadline": _group_deadline,
    "keep_checkpoints": _keep_checkpoints,
    "log_every": _log_every,
    "log_trajectories": _log_trajectories,
    "model": _model,
    "monitors": _monitors,
    "name": _name,
    "output_dir": _output_dir,
    "overwrite": _resume_overwrite,
    "progress": _progress,
    "quantization": _quantization,
    "rank_deadline": _rank_deadline,
    "ray_address": _crew,
    "resume": _resume_overwrite,
    "sampler_options": _sampler_options,
    "save_every": _save_every,
    "slots": _slots,
    "thinking": _thinking,
    "updates": _updates,
    "worker_cpus": _crew,
    "worker_gpus": _crew,
}


def test_there_is_a_row_for_every_key() -> None:
    names = list(GRPOConfig.model_fields)
    credit = names[names.index("reward_schedule") : names.index("fault_alarm")]  # in test_grpo_keys_learning.py
    assert set(KEYS) == set(names) - set(credit)


def test_a_row_that_names_a_test_is_checked(shown_in: Callable[[str, str], None]) -> None:
    shown_in("test_grpo.py::test_epochs_deal_every_task_once", "max_samples")
    shown_in("test_compat_trainers.py::test_every_option_of_grpo_has_an_effect", "lora_rank")  # in a table of a table
    for named, key, why in (
        ("test_grpo.py::test_epochs_deal_every_task_once", "samples", "does not speak of samples"),
        ("test_ray.py::test_an_address_where_nobody_is", "ray_address", "is slow"),
        ("test_ranks.py::test_ctrl_c_on_one_rank_stops_both", "save_every", "is slow"),
    ):
        with pytest.raises(AssertionError, match=why):
            shown_in(named, key)
    with pytest.raises(ValueError, match="unpack"):
        shown_in("test_grpo.py::test_of_nothing", "updates")


@pytest.mark.parametrize(
    "key", sorted({check: key for key, check in KEYS.items()}.values())
)  # one of those that share a check
def test_it_has_an_effect(
    key: str,
    small_runs: Any,
    small_model: Path,
    left_behind: Callable[[Path], Any],
    shown_in: Callable[[str, str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = {"run": small_runs, "small_model": small_model, "left_behind": left_behind, "shown_in": shown_in}
    KEYS[key](**given, tmp_path=tmp_path, monkeypatch=monkeypatch, capsys=capsys)
