"""The command, from models to files."""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trajgym.cli import main
from trajgym.policies.base import Policy
from trajgym.policies.catalogue import POLICIES

ARGS = ["evaluate", "--env", "ArithmeticTool-v0", "--limit", "6"]


def run(folder: Path, *args: str) -> int:
    return main([*ARGS, "--out", str(folder), *args])


def report(folder: Path) -> dict[str, object]:
    found = json.loads((folder / "report.json").read_text())
    assert isinstance(found, dict)
    return found


def test_models_are_compared_on_the_same_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ("--model", "good=expert", "--model", "random", "--change", "distractor", "--forgetting", "Arithmetic-v0")
    assert run(tmp_path, *args) == 0
    printed = capsys.readouterr().out
    assert "| accuracy | 100.0 %" in printed
    assert "good → random: -" in printed
    found = json.loads((tmp_path / "report.json").read_text())
    assert [r["name"] for r in found["results"]] == ["good", "random"]
    assert found["results"][0]["measures"]["accuracy"]["value"] == 1.0
    assert found["robustness"]["good"][0]["after"] == "distractor"
    assert found["forgetting"][0]["before"] == "good"
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_demonstrations_solve_tasks_without_tools_too(tmp_path: Path) -> None:
    assert run(tmp_path, "--model", "expert", "--env", "Arithmetic-v0") == 0
    [found] = json.loads((tmp_path / "report.json").read_text())["results"]
    assert found["measures"]["accuracy"]["value"] == 1.0


def test_a_model_of_the_embedded_kind(model_folder: Path, tmp_path: Path) -> None:
    args = ("--model", str(model_folder), "--max-turn-tokens", "4", "--samples", "2", "--temperature", "1")
    assert run(tmp_path, *args, "--price", "1,2") == 0
    [found] = json.loads((tmp_path / "report.json").read_text())["results"]
    assert (found["tasks"], found["attempts"]) == (6, 2)
    assert found["settings"]["fingerprint"]
    assert found["measures"]["accuracy@2"]["count"] == 6
    assert found["measures"]["cost"]["value"] > 0
    assert found["measures"]["length_tokens"]["value"] <= 4 * 12


def test_a_runs_adapter_is_played(model_folder: Path, tmp_path: Path) -> None:
    """A run with adapters leaves no whole model behind, and is played all the same."""
    from trajgym.trainers.checksums import write_checksums
    from trajgym.trainers.models import add_lora, load_model

    model, _ = load_model(str(model_folder))
    model = add_lora(model, rank=2, alpha=4, targets=("q_proj",), seed=0)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.fill_(0.5)
    checkpoint = tmp_path / "run" / "checkpoints" / "update-000001"
    model.save_pretrained(checkpoint / "model")
    write_checksums(checkpoint)
    (tmp_path / "run" / "config.yaml").write_text(f"model: {model_folder}\n")
    args = ("--model", str(tmp_path / "run"), "--model", f"base={model_folder}", "--max-turn-tokens", "4")
    assert run(tmp_path / "out", *args) == 0
    adapted, base = report(tmp_path / "out")["results"]  # type: ignore[misc]
    assert adapted["settings"]["fingerprint"].endswith(base["settings"]["fingerprint"])
    said = [(tmp_path / "out" / f"model-{n}" / "trajectories.jsonl").read_text() for n in (1, 2)]
    assert said[0].replace('"model": "run"', "") != said[1].replace('"model": "base"', "")


def test_a_second_call_plays_nothing_again(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ("--model", str(model_folder), "--max-turn-tokens", "4")
    assert run(tmp_path, *args) == 0
    first = report(tmp_path)
    monkeypatch.setattr("trajgym.policies.hf.HFSampler.step", None)
    assert run(tmp_path, *args) == 0
    assert report(tmp_path) == first


def test_tasks_and_changes_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "tasks.jsonl"
    data.write_text('{"id": "a1", "question": "1 + 1?", "answer": 2}\n{"id": "b", "question": "2 + 2?", "answer": 4}\n')
    (tmp_path / "changes_for_tests.py").write_text(
        "import dataclasses\n"
        "def polite(task):\n"
        "    return dataclasses.replace(task, question='Please: ' + task.question) if task.id == 'b' else None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    args = ("--model", "random", "--data", str(data), "--change", "changes_for_tests:polite")
    assert run(tmp_path / "out", *args) == 0
    found = json.loads((tmp_path / "out" / "report.json").read_text())
    assert found["results"][0]["tasks"] == 2
    assert (found["robustness"]["random"][0]["after"], found["robustness"]["random"][0]["tasks"]) == ("polite", 1)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--model", "expert", "--env", "Arithmetic-v9"), "Unknown environment 'Arithmetic-v9'"),
        (("--model", "./missing"), "there is no folder ./missing"),
        (("--model", "expert", "--split", "valid"), "Unknown split 'valid'"),
        (("--model", "expert", "--limit", "0"), "limit must be a whole number"),
        (("--model", "a=expert", "--model", "a=random"), "Two models are called 'a'"),
        (("--model", "=expert"), "--model must be a model"),
        (("--model", "api:"), "names no model"),
        (("--model", "tiny", "--samples", "3"), "at temperature 0 are all alike"),
        (("--model", "expert", "--samples", "0"), "--samples must be at least 1"),
        (("--model", "expert", "--temperature", "-1"), "--temperature must be"),
        (("--model", "expert", "--k", "2"), "Make more attempts"),
        (("--model", "expert", "--change", "distracter"), "Did you mean 'distractor'?"),
        (("--model", "expert", "--change", "nowhere:f"), "leads nowhere"),
        (("--model", "expert", "--change", "json:__name__"), "must lead to a function"),
        (("--model", "expert", "--data", "missing.jsonl"), "missing.jsonl cannot be read"),
        (("--model", "expert", "--env-kwargs", '{"reward": "dense"}'), "pays for"),
        (("--model", "expert", "--price=-1,2"), "finite number"),
        (("--model", "expert", "--price", "nan,2"), "finite number"),
        (("--model", "expert", "--price", "other=1,2"), "is for no model of this call; there are: expert"),
        (("--model", "expert", "--price", "1,2", "--price", "3,4"), "given twice"),
        (("--model", "expert", "--seed", "-1"), "--seed must be at least 0"),
        (("--model", "expert", "--dialogues", "-1"), "--dialogues must be at least 0"),
        (("--model", "expert", "--max-episode-tokens", "0"), "--max-episode-tokens must be at least 1"),
        (("--model", "api:m@127.0.0.1:8000/v1"), "has no address"),
    ],
)
def test_wrong_use(
    args: tuple[str, ...],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    assert run(tmp_path, *args) in (1, 2)
    assert said in capsys.readouterr().err


def test_a_column_that_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"question": "1 + 1?"}\n')
    assert run(tmp_path, "--model", "expert", "--data", str(tmp_path / "tasks.jsonl")) == 1
    assert "line 1: the column 'answer' is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"difficulty": -5}, "'difficulty' must be a number of steps from 0"),
        ({"difficulty": True}, "'difficulty' must be a number of steps from 0"),
        ({"id": {"x": 1}}, "'id' must be a text or a whole number"),
        ({"id": 1.5}, "'id' must be a text or a whole number"),
    ],
)
def test_columns_that_say_nothing(
    row: dict[str, object], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"question": "1 + 1?", "answer": 2, **row}) + "\n")
    assert run(tmp_path, "--model", "expert", "--data", str(tmp_path / "tasks.jsonl")) == 1
    assert said in capsys.readouterr().err


def test_questions_that_come_twice_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"id": null, "question": "1 + 1?", "answer": 2}\n' * 3)
    assert run(tmp_path, "--model", "random", "--data", str(tmp_path / "tasks.jsonl")) == 0
    assert "2 of 3 tasks ask what an earlier one asks" in capsys.readouterr().err
    rows = (tmp_path / "model-1" / "samples.jsonl").read_text().splitlines()
    assert [json.loads(row)["task_id"] for row in rows] == ["1", "2", "3"]


def test_names_and_addresses_of_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai")
    from trajgym.scripts.evaluate import _parser
    from trajgym.scripts.evaluate_players import load

    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    options = _parser().parse_args(["--model", "m", "--out", "o", "--api-tool-role", "tool"])
    for given, name, url in (
        ("api:m@http://h:1/v1", "m", "http://h:1/v1"),
        ("api:@cf/meta/m@https://u:p@h/v1", "@cf/meta/m", "https://u:p@h/v1"),
        ("api:org/m@v2", "org/m@v2", ""),
    ):
        player = load(given, options, {})
        assert (player.settings["model"], player.settings["url"]) == (name, url)
        assert (player.settings["tool_role"], player.settings["calls"]) == ("tool", "text")
        player.policy.close()  # type: ignore[attr-defined]


def _made(maker: Callable[[], Policy], env: object) -> Policy:
    return maker()


def test_a_registered_policy_plays_again_when_its_code_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(POLICIES, "_items", POLICIES.registered())
    monkeypatch.syspath_prepend(str(tmp_path))
    played: list[str] = []
    for answer in ("0", "0", "1"):
        (tmp_path / "answering.py").write_text(
            "from trajgym.policies.base import TextPolicy\n"
            "class Answering(TextPolicy):\n"
            "    def act(self, messages, task, seed=0):\n"
            f"        self.told('{answer}')\n"
            f"        return '#### {answer}'\n"
        )
        monkeypatch.delitem(sys.modules, "answering", raising=False)
        importlib.invalidate_caches()
        policy = importlib.import_module("answering").Answering
        policy.told = staticmethod(played.append)
        POLICIES.register("answering", lambda env, policy=policy: policy(8), replace=True)
        assert run(tmp_path, "--model", "answering", "--limit", "2") == 0
    assert played == ["0", "0", "1", "1"]  # the second time, nothing
    maker = tmp_path / "making.py"
    for capacity in (1, 2):
        maker.write_text(f"from answering import Answering\ndef make(env):\n    return Answering({capacity})\n")
        monkeypatch.delitem(sys.modules, "making", raising=False)
        importlib.invalidate_caches()
        POLICIES.register("answering", importlib.import_module("making").make, replace=True)
        assert run(tmp_path, "--model", "answering", "--limit", "2") == 0
    assert played == ["0", "0", *["1"] * 6]  # what makes it is part of it
    for capacity in (3, 4):
        maker = functools.partial(importlib.import_module("answering").Answering, capacity)
        POLICIES.register("answering", functools.partial(_made, maker), replace=True)
        assert run(tmp_path, "--model", "answering", "--limit", "2") == 0
    assert played == ["0", "0", *["1"] * 10]  # what is bound to a maker stands in no file


def test_what_a_registered_name_makes_must_be_a_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(POLICIES, "_items", POLICIES.registered())
    POLICIES.register("nothing", lambda env: None)  # type: ignore[arg-type, return-value]
    assert run(tmp_path, "--model", "nothing") == 2
    assert "'nothing' must make a trajgym.policies.Policy" in capsys.readouterr().err


def test_a_corrupt_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "played").mkdir()
    (tmp_path / "played" / "expert.jsonl").write_text("nonsense\n")
    assert run(tmp_path, "--model", "expert") == 1
    assert "Delete it to play them again" in capsys.readouterr().err
    assert run(tmp_path, "--model", "expert", "--fresh") == 0


@pytest.mark.parametrize("args", [("--env-kwargs", "3"), ("--env-kwargs", "{"), ("--k", "a"), ("--price", "1")])
def test_options_that_cannot_be_read(args: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(tmp_path, "--model", "expert", *args)
