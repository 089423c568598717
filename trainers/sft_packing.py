"""Packing: several rows in one sequence. Whether a model keeps them apart is tried out, not believed.

TRL marks where a row begins by its positions, which start from 0 again, and gives no attention mask. transformers
builds a block-diagonal mask from that for most models, whatever attention they use; a model with code of its own may
not, and would let each row see the ones before it.
"""

from __future__ import annotations

from typing import Any

import torch
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from trajgym.errors import ConfigError
from trajgym.trainers.sft_rows import TokenRow

__all__ = ["require_apart"]

# Of the spread of the logits; a row that sees another one differs by about all of it.
_TOLERANCE, _TOLERANCE_BF16 = 0.02, 0.2
_LONGEST = 256  # tokens of a row that are tried


@torch.no_grad()
def require_apart(model: Any, rows: list[TokenRow], *, pad_id: int) -> None:
    """Refuse a model that lets packed rows see each other.

    Args:
        model: In evaluation mode, in the format in which it is trained.
        rows: The last one is tried behind the first.
        pad_id: Any token's id.

    Raises:
        ConfigError: When a row's logits depend on what is packed before it.
    """
    first, second = ({"input_ids": row["input_ids"][:_LONGEST]} for row in (rows[0], rows[-1]))
    collate = DataCollatorForLanguageModeling(pad_id, padding_free=True)

    def logits(*packed: dict[str, list[int]]) -> torch.Tensor:
        batch = collate(list(packed))
        del batch["labels"]
        inputs = {k: v.to(model.device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
        return torch.as_tensor(model(**inputs, use_cache=False).logits[0]).float()

    alone = logits(second)
    packed = logits(first, second)[len(first["input_ids"]) :]
    gap = float((packed - alone).abs().max() / alone.std().clamp(min=1e-6))
    if not gap <= (_TOLERANCE if model.dtype == torch.float32 else _TOLERANCE_BF16):
        raise ConfigError(
            f"packing: this model lets a packed row see the rows before it (its logits move by {gap:.2g} of their "
            "spread), so it would learn from dialogues that never were. Train with packing: false."
        )
