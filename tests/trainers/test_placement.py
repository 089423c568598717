"""Models that are dealt to several devices: on a CPU, to memory and to the disk."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trajgym.cli import main
from trajgym.errors import ConfigError, UnknownNameError
from trajgym.policies.hf import HFSampler
from trajgym.trainers import placement
from trajgym.trainers.export import export
from trajgym.trainers.models import add_lora, load_model
from trajgym.trainers.placement import placing_arguments, read_device_map, require_one_place
from trajgym.trainers.trained import find_source, open_source

PROMPT = (3, 4, 5, 6, 3, 3)


def on_disk(folder: Path, first: str = "cpu") -> dict[str, int | str]:
    """A map of the model in which every other layer stays on disk."""
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    places = {f"model.layers.{i}": "disk" if i % 2 else "cpu" for i in range(layers)}
    return {"model.embed_tokens": first, "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"} | places


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=torch.tensor([PROMPT]), use_cache=False).logits
    return found


def written(model: Any) -> list[tuple[int, ...]]:
    """What our engine draws after two prompts."""
    sampler = HFSampler(model, slots=2, max_length=32, stop_ids=[2], temperature=1.0)
    for seed, ids in enumerate((PROMPT, PROMPT[:3])):
        sampler.generate(sampler.open(ids, seed=seed), max_new_tokens=12)
    turns: dict[int, tuple[int, ...]] = {}
    while len(turns) < 2:
        turns |= {turn.stream: turn.ids for turn in sampler.step()}
    return [turns[stream] for stream in sorted(turns)]


def test_a_model_says_the_same_wherever_its_layers_lie(digit_model: Path) -> None:
    plain = load_model(str(digit_model))[0]
    for device_map in ("auto", "sequential", {"": "cpu"}):
        dealt = load_model(str(digit_model), device_map=device_map)[0]
        assert torch.equal(logits(dealt), logits(plain)), device_map
        assert written(dealt) == written(plain), device_map


def test_layers_are_fetched_from_the_disk(digit_model: Path) -> None:
    plain = load_model(str(digit_model))[0]
    dealt = load_model(str(digit_model), device_map=on_disk(digit_model))[0]
    assert any(p.device.type == "meta" for p in dealt.parameters())
    assert torch.equal(logits(dealt), logits(plain))
    assert written(dealt) == written(plain)


def test_the_first_weights_must_be_at_hand(digit_model: Path) -> None:
    with pytest.raises(ConfigError, match=r"leaves the first weights \(model\.embed_tokens\.weight\)"):
        load_model(str(digit_model), device_map=on_disk(digit_model, first="disk"))
    assert load_model(str(digit_model), device_map=on_disk(digit_model, first="disk"), sampled=False)


def test_exports_do_not_depend_on_it(tmp_path: Path) -> None:
    plain = export("tiny", tmp_path / "plain").folder
    for name, device_map in (("auto", "auto"), ("cpu", {"": "cpu"})):
        done = export("tiny", tmp_path / name, device_map=device_map)
        assert (done.folder / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()


def test_an_adapter_finds_no_room_beside_layers_on_disk(digit_model: Path, tmp_path: Path) -> None:
    model, _ = load_model(str(digit_model))
    add_lora(model, rank=2, alpha=4, targets=("q_proj",), seed=0).save_pretrained(tmp_path)
    source = find_source(tmp_path)
    with pytest.raises(ConfigError, match="Merge it first with `trajgym export`"):
        open_source(source, device_map=on_disk(digit_model))
    assert torch.equal(logits(open_source(source, device_map="auto")[0]), logits(open_source(source)[0]))


@pytest.mark.parametrize(
    ("device_map", "said"),
    [
        ({}, "must be one of auto"),
        ({0: "cpu"}, "must be one of auto"),
        (["cpu"], "must be one of auto"),
        ({"": "gpu"}, "'everything' on 'gpu', which cannot be used here"),
        ({"": True}, "on True, which cannot be used here"),
        ({"model": "meta"}, "'model' on 'meta', which cannot be used here"),
        ({"model": "cuda:77"}, "on 'cuda:77', which cannot be used here"),
    ],
)
def test_maps_that_lead_nowhere(device_map: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        placing_arguments(device_map, sampled=True)


def test_a_map_that_leaves_parts_out(digit_model: Path) -> None:
    with pytest.raises(ConfigError, match=r"device map \{'lm_head': 'disk'\}"):
        load_model(str(digit_model), device_map={"lm_head": "disk"})


def test_unknown_strategies_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'auto'"):
        placing_arguments("atuo", sampled=False)


def test_our_engine_takes_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "accelerate.utils.get_max_memory", lambda: {0: 1000, 1: 2000, "cpu": 500}
    )  # as on a machine with two
    assert placing_arguments("auto", sampled=True) == {"device_map": "auto", "max_memory": {0: 900, "cpu": 500}}
    assert placing_arguments("auto", sampled=False) == {"device_map": "auto"}

    def empty(size: int, *, device: int | str) -> Any:
        return SimpleNamespace(device=torch.device("cuda", device) if isinstance(device, int) else torch.device(device))

    monkeypatch.setattr(placement.torch, "empty", empty)
    one = {"model": 0, "lm_head": "cuda:0", "rest": "cpu", "last": "disk"}
    assert placing_arguments(one, sampled=True) == {"device_map": one}
    two = {"model": 0, "lm_head": 1}
    with pytest.raises(ConfigError, match="deals layers to cuda:0, cuda:1"):
        placing_arguments(two, sampled=True)
    assert placing_arguments(two, sampled=False) == {"device_map": two}


def test_the_command_line() -> None:
    assert read_device_map(None) is None
    assert read_device_map("auto") == "auto"
    assert read_device_map(' {"": 0}') == {"": 0}
    with pytest.raises(ConfigError, match="is no JSON"):
        read_device_map("{")
    require_one_place("auto", "auto")
    require_one_place("cpu", None)
    with pytest.raises(ConfigError, match="both say where"):
        require_one_place("cpu", "auto")


def test_evaluations_do_not_depend_on_it(digit_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["evaluate", "--model", str(digit_model), "--env", "Arithmetic-v0", "--limit", "3", "--max-turn-tokens", "4"]
    found = []
    for number, more in enumerate(([], ["--device-map", "auto"], ["--device-map", '{"": "cpu"}'])):
        out = tmp_path / str(number)
        assert main([*ask, "--out", str(out), *more]) == 0
        rows = [json.loads(line) for line in (out / "model-1" / "samples.jsonl").read_text().splitlines()]
        found.append([{name: value for name, value in row.items() if name != "seconds"} for row in rows])
    assert found[0] == found[1] == found[2]
    assert main([*ask, "--out", str(tmp_path / "x"), "--device-map", "auto", "--device", "cpu"]) == 2
    assert "both say where" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [["serve", "tiny"], ["export", "tiny", "OUT"], ["evaluate", "--model", "tiny", "--out", "OUT"]]
)
def test_commands_refuse_what_leads_nowhere(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.replace("OUT", str(tmp_path / "out")) for word in command]
    if words[0] == "evaluate":
        words += ["--env", "Arithmetic-v0"]
    assert main([*words, "--device-map", "atuo"]) == 2
    assert "Did you mean 'auto'" in capsys.readouterr().err
    assert main([*words, "--device-map", "{"]) == 2
    assert not (tmp_path / "out" / "config.json").exists()
