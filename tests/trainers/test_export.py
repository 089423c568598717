"""Trained models as folders that load anywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from trajgym.errors import CheckpointError, ConfigError, UnknownNameError
from trajgym.trainers.checksums import write_checksums
from trajgym.trainers.export import export, merge
from trajgym.trainers.models import add_lora, load_model
from trajgym.trainers.trained import find_source, open_source

PROBE = torch.tensor([[3, 4, 5, 6, 3, 3, 5, 4]])


def adapted(digit_model: Path) -> tuple[Any, Any]:
    """A model with adapters that have learned something."""
    model, tokenizer = load_model(str(digit_model))
    model = add_lora(model, rank=4, alpha=16, targets=("q_proj", "v_proj", "down_proj"), seed=0)
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.2)
    return model, tokenizer


@pytest.fixture
def run(tmp_path: Path, digit_model: Path) -> Path:
    """A run folder with two checkpoints of adapters."""
    folder = tmp_path / "my-run"
    model, tokenizer = adapted(digit_model)
    for update in (10, 20):
        checkpoint = folder / "checkpoints" / f"update-{update:06d}"
        model.save_pretrained(checkpoint / "model")
        tokenizer.save_pretrained(checkpoint / "model")
        write_checksums(checkpoint)
    options = {"algorithm": "grpo", "model": str(digit_model), "env": "Arithmetic-v0", "use_lora": True, "seed": 3}
    (folder / "config.yaml").write_text(yaml.safe_dump(options), encoding="utf-8")
    (folder / "metrics.jsonl").write_text('{"update": 20, "success": 0.75, "reward": 0.8}\n', encoding="utf-8")
    return folder


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=PROBE, use_cache=False).logits
    return found


def test_merged_logits_are_the_adapted_ones(run: Path, digit_model: Path, tmp_path: Path) -> None:
    expected = logits(adapted(digit_model)[0])
    plain = logits(load_model(str(digit_model))[0])
    done = export(run, tmp_path / "out")
    found = logits(load_model(str(done.folder))[0])
    assert torch.allclose(found, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(found, plain, atol=1e-2)
    assert done.difference is not None
    assert done.difference < 1e-5


def test_it_loads_without_peft_and_without_us(run: Path, tmp_path: Path) -> None:
    out = export(run, tmp_path / "out").folder
    code = (
        "import sys\n"
        "sys.modules['peft'] = sys.modules['trajgym'] = None\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        f"model = AutoModelForCausalLM.from_pretrained({str(out)!r})\n"
        f"tokenizer = AutoTokenizer.from_pretrained({str(out)!r})\n"
        "ids = tokenizer.apply_chat_template([{'role': 'user', 'content': '012'}], add_generation_prompt=True,\n"
        "                                    return_tensors='pt', return_dict=True)\n"
        "print(type(model).__name__, model.generate(**ids, max_new_tokens=4).shape[1] > ids['input_ids'].shape[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["LlamaForCausalLM", "True"], done.stderr


def test_generation_stops_where_a_turn_ends_and_samples_by_default(run: Path, tmp_path: Path) -> None:
    out = export(run, tmp_path / "out").folder
    settings = json.loads((out / "generation_config.json").read_text(encoding="utf-8"))
    assert settings["eos_token_id"] == [2]
    assert (settings["do_sample"], settings["temperature"], settings["max_new_tokens"]) == (True, 0.7, 512)
    assert (out / "chat_template.jinja").is_file()


def test_the_card_says_what_it_is(run: Path, tmp_path: Path) -> None:
    out = export(run, tmp_path / "out").folder
    card = (out / "README.md").read_text(encoding="utf-8")
    _, head, body = card.split("---", 2)
    assert yaml.safe_load(head)["library_name"] == "transformers"
    for words in ("grpo", "Arithmetic-v0", "| success | `0.75` |", "model.safetensors", "adapters are merged"):
        assert words in body


def test_half_precision_is_rounded_once(run: Path, digit_model: Path, tmp_path: Path) -> None:
    out = export(run, tmp_path / "out", dtype="bfloat16").folder
    stored = load_model(str(out), dtype="bfloat16")[0].state_dict()
    exact, _ = merge(adapted(digit_model)[0])
    for name, weight in exact.state_dict().items():
        assert torch.equal(stored[name], weight.to(torch.bfloat16)), name


def test_whole_models_are_exported_as_they_are(digit_model: Path, tmp_path: Path) -> None:
    done = export(digit_model, tmp_path / "out")
    assert done.difference is None
    assert torch.equal(logits(load_model(str(done.folder))[0]), logits(load_model(str(digit_model))[0]))


def test_a_merge_that_changes_the_model_is_refused(digit_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = adapted(digit_model)
    real = model.merge_and_unload

    def wrong(**options: Any) -> Any:
        merged = real(**options)
        merged.lm_head.weight.data.mul_(1.01)
        return merged

    monkeypatch.setattr(model, "merge_and_unload", wrong)
    with pytest.raises(CheckpointError, match="differ from the adapted"):
        merge(model)


def test_nothing_is_overwritten_unasked(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(run, out)
    with pytest.raises(ConfigError, match="--overwrite"):
        export(run, out)
    export(run, out, overwrite=True)
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious").write_text("x", encoding="utf-8")
    with pytest.raises(ConfigError, match="no exported model"):
        export(run, other, overwrite=True)
    assert (other / "precious").is_file()


def test_nothing_half_written_is_left(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trajgym.trainers import export as module

    def fails(*args: Any, **kwargs: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "model_card", fails)
    with pytest.raises(KeyboardInterrupt):
        export(run, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["my-run"]


def test_a_checkpoint_can_be_chosen(run: Path) -> None:
    assert find_source(run).adapter == run / "checkpoints" / "update-000020" / "model"
    assert find_source(run, "update-000010").adapter == run / "checkpoints" / "update-000010" / "model"
    with pytest.raises(CheckpointError, match="update-000010"):
        find_source(run, "update-000030")


def test_a_finished_model_goes_before_checkpoints(run: Path, digit_model: Path) -> None:
    (run / "model").symlink_to(digit_model)
    found = find_source(run)
    assert (found.base, found.adapter) == (str(run / "model"), None)


def test_damage_is_noticed(run: Path, tmp_path: Path) -> None:
    weights = run / "checkpoints" / "update-000020" / "model" / "adapter_model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="damaged"):
        export(run, tmp_path / "out")
    assert find_source(run, "update-000010").adapter is not None


def test_an_adapter_alone_names_its_base(run: Path, digit_model: Path) -> None:
    folder = run / "checkpoints" / "update-000020" / "model"
    found = find_source(folder)
    assert (found.base, found.adapter, found.run) == (str(digit_model), folder, None)
    model, _ = open_source(found)
    assert torch.allclose(logits(model), logits(adapted(digit_model)[0]), atol=1e-6)


def test_an_adapter_of_another_model_is_refused(run: Path, tmp_path: Path) -> None:
    options = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    (run / "config.yaml").write_text(yaml.safe_dump({**options, "model": "tiny"}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="does not fit tiny"):
        export(run, tmp_path / "out")


@pytest.mark.parametrize("content", ["", "[1]", "a: [", "\x00"])
def test_a_broken_run_is_one_clear_error(run: Path, content: str) -> None:
    (run / "config.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"config\.yaml"):
        find_source(run)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no model"):
        find_source(tmp_path)
    with pytest.raises(ConfigError, match="no folder"):
        export(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(ConfigError, match="needs a run's folder"):
        find_source("tiny", "update-000001")
    with pytest.raises(UnknownNameError):
        export("tiny", tmp_path / "out", dtype="float64")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text("model: tiny\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        find_source(tmp_path / "run")
