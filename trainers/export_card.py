"""The model card of an exported model: what it is, what it came from, how it was trained, how to use it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from trajgym import __version__
from trajgym.trainers.trained import Source

__all__ = ["model_card"]

# Of the dozens of options, those that say what was trained on what.
_TOLD = (
    *("algorithm", "env", "env_kwargs", "reward", "data", "updates", "epochs", "estimator", "gamma", "kl_coef"),
    *("num_generations", "groups_per_update", "learning_rate", "use_lora", "lora_rank", "lora_alpha", "seed"),
)
_FIGURES = ("success", "reward", "turns", "call_share", "call_error_share", "format_share", "kl", "loss")

_USE = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{path}")
tokenizer = AutoTokenizer.from_pretrained("{path}")
messages = [{{"role": "user", "content": "What is 48 + 24?"}}]
ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
reply = model.generate(**ids)[0, ids["input_ids"].shape[1] :]
print(tokenizer.decode(reply, skip_special_tokens=True))
```

Or `trajgym serve {path}`, and any client of OpenAI's interface."""


def model_card(
    source: Source, *, name: str, folder: Path, dtype: str, difference: float | None, stop_ids: Sequence[int]
) -> str:
    """Return the text of the card.

    Args:
        source: What was exported.
        name: What the exported folder is called.
        folder: Where the weights stand already; their hashes are told.
        dtype: Of the weights.
        difference: What merging changed, see :func:`trajgym.trainers.export.merge`.
        stop_ids: Tokens that end a turn.
    """
    head: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": ["trajgym"]}
    base = str(source.options.get("model", source.base))
    if not Path(base).is_dir() and base != "tiny":  # only the hub's names lead anywhere for a reader
        head["base_model"] = base
    parts = [f"---\n{yaml.safe_dump(head, sort_keys=False)}---", f"# {name}", _origin(source, base, difference)]
    parts += ["## Use", _USE.format(path=f"./{name}")]
    if source.options:
        told = {key: source.options[key] for key in _TOLD if source.options.get(key) not in (None, {}, [], "")}
        parts += ["## Training", _table(told)]
        figures = _last_figures(source.run)
        if figures:
            parts += ["The last figures that the run noted, on its own training tasks:", _table(figures)]
    parts += [
        "## What to know",
        f"- Weights in {dtype}; a turn ends at the token ids {list(stop_ids)}.\n"
        "- Figures of training are no evaluation: `trajgym evaluate` plays tasks that were not trained on.\n"
        "- The licence is that of the base model.",
        "## Files",
        _table({path.name: _sha256(path) for path in sorted(folder.glob("*.safetensors"))}),
        f"Written by trajgym {__version__}.",
    ]
    return "\n\n".join(parts) + "\n"


def _origin(source: Source, base: str, difference: float | None) -> str:
    made = f"Trained with trajgym from `{base}`." if source.options else f"Exported with trajgym from `{base}`."
    if difference is None:
        return made
    return (
        f"{made} Its adapters are merged into the weights: the logits differ from those of the adapted model by at "
        f"most {difference:.1e} of the largest one (float32, before rounding to the precision below)."
    )


def _last_figures(run: Path | None) -> dict[str, Any]:
    try:
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines() if run else []
        last = json.loads(lines[-1]) if lines else {}
    except (OSError, ValueError):  # a run without figures, or one that was cut short
        return {}
    return {key: last[key] for key in ("update", *_FIGURES) if key in last}


def _table(values: Mapping[str, Any]) -> str:
    shown = {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in values.items()}
    rows = [f"| {key} | `{value}` |" for key, value in shown.items()]
    return "\n".join(["| | |", "|---|---|", *rows])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
