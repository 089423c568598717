"""What a real run counts of itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from trajgym.policies.prefix import CommonPrefix
from trajgym.policies.streams import most_alike
from trajgym.trainers.config import load_config
from trajgym.trainers.grpo import train

SYSTEM = 150  # tokens: more than pays to be read once for all streams


@pytest.fixture
def long_model(digit_model: Path, tmp_path: Path) -> Path:
    """The model over digits, with room for a long dialogue."""
    folder = Path(shutil.copytree(digit_model, tmp_path / "long-model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 256}))
    return folder


def test_nothing_is_needed_that_was_not_done_where_tasks_share_instructions(
    identity_options: dict[str, Any], long_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_over: list[int] = []
    read_once: list[int] = []
    attend = CommonPrefix.attend

    def found(*args: Any) -> tuple[int, int]:
        which, length = most_alike(*args)
        taken_over.append(length)
        return which, length

    def attended(self: CommonPrefix, *args: Any, **kwargs: Any) -> Any:
        read_once.append(self.length)
        return attend(self, *args, **kwargs)

    monkeypatch.setattr("trajgym.policies.hf.most_alike", found)
    monkeypatch.setattr(CommonPrefix, "attend", attended)
    options = {
        **identity_options,
        "model": str(long_model),
        "env_kwargs": {"system": "!" * SYSTEM},
        "max_episode_tokens": SYSTEM + 24,
        "num_generations": 2,
        "slots": 8,
        "updates": 1,
        "kl_coef": 0.05,
    }
    folder = train(load_config(options))
    assert max(taken_over) > SYSTEM  # what several tasks begin with went through the sampler's model once
    assert min(read_once) > SYSTEM
    line = json.loads((folder / "metrics.jsonl").read_text())
    assert 0.5 < line["efficiency/useful_token_share"] <= 1.0
    assert 0.0 < line["efficiency/eta"] < 1.0
