"""Passes over a :class:`trajgym.trainers.tree.Tree`, and whether a model can make them.

transformers hands what it does not know on to the attention of each layer. There, the tree takes the place of the mask.
A model whose layers see more than that (a window, a recurrent state, distances that it counts for itself) would compute
something else without saying so; hence every model is tried first, on a few tokens, against separate rows.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trajgym.errors import TrainingError
from trajgym.trainers.tree import Tree, make_tree

__all__ = ["attend", "rows_at", "run_tree", "why_not_shared"]

_KEY = "prefix_tree"
_SHARED = 6  # tokens that the rows of the trial begin with
_TRIAL = ([5, 9, 2, 7, 3, 8, 1, 6, 4, 10], [5, 9, 2, 7, 3, 8, 6, 1, 9, 2, 11, 4], [5, 9, 2, 7, 3, 8, 4, 2, 10])
_WINDOWS = ("sliding_window", "attention_chunk_size")
_LAYERS = ("full_attention", "sliding_attention", "chunked_attention")


def run_tree(model: Any, tree: Tree, **more: Any) -> Any:
    """Run a decoder, with or without its head, over a tree; ``more`` are further arguments of the pass."""
    _install()
    # A mask of four dimensions is taken as it is. Nobody reads this one; without it, a large one would be made.
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=tree.ids.device)
    return model(
        input_ids=tree.ids, position_ids=tree.positions, attention_mask=mask, use_cache=False, **{_KEY: tree}, **more
    )


def attend(tree: Tree, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, dropout: float) -> Tensor:
    """Let every token of a tree see its own row up to itself.

    Args:
        tree: Who sees whom.
        query: Shape: (1, heads, N, head_size).
        key: Shape: (1, kv_heads, N, head_size), kv_heads a divisor of heads.
        value: As ``key``; its heads may be of another size.
        scale: Factor on scores; one over the root of head_size when ``None``.
        dropout: Share of weights to drop.

    Returns:
        Shape: (1, N, heads, head_size of the values).
    """
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # token by token
    heads, size = q.shape[1], v.shape[2]
    results = []
    for call in tree.calls:
        asked = rows_at(q, call.queries).transpose(1, 2)
        keys, values = (_repeated(rows_at(x, call.keys), heads).transpose(1, 2) for x in (k, v))
        found = functional.scaled_dot_product_attention(
            asked, keys, values, attn_mask=call.seen, dropout_p=dropout, is_causal=call.seen is None, scale=scale
        )
        results.append(found.transpose(1, 2).reshape(-1, heads, size))
    return rows_at(torch.cat(results), tree.places)[None]


def rows_at(x: Tensor, index: Tensor) -> Tensor:
    """Return ``x[index]``: as an embedding, whose gradient is added up faster than that of other ways to index."""
    return functional.embedding(index, x.reshape(x.shape[0], -1)).view(*index.shape, *x.shape[1:])


def why_not_shared(model: Any, longest: int) -> str:
    """Try a model; return why it cannot run on trees, or an empty text.

    Args:
        model: A decoder, with or without a head. Each of several ranks with divided weights must call this.
        longest: Tokens of the longest row that there will be: a window at least as wide is none.
    """
    inner = getattr(model, "get_base_model", lambda: model)()
    config = getattr(inner.config, "get_text_config", lambda: inner.config)()
    for name in _WINDOWS:
        width = getattr(config, name, None)
        if isinstance(width, int) and width < longest:
            return f"the model's {name} of {width} tokens is shorter than a row may be ({longest})"
    if getattr(config, "_attn_implementation", None) != "sdpa":
        return f"the model's attention is {getattr(config, '_attn_implementation', None)!r}, not 'sdpa'"
    if others := sorted(set(getattr(config, "layer_types", None) or ()) - set(_LAYERS)):
        return f"some layers are no attention ({', '.join(others)})"
    if getattr(config, "attn_temperature_tuning", None):
        return "the model counts positions by itself (attn_temperature_tuning)"
    if any(isinstance(module, (nn.Conv1d, nn.RNNBase)) for module in model.modules()):
        return "some layers mix neighbouring tokens"
    size = int(config.vocab_size)
    rows = [[token % size for token in row] for row in _TRIAL]
    device = next(iter(model.parameters())).device
    tree = make_tree(rows, [list(range(1, len(row))) for row in rows]).on(device)
    try:
        with torch.no_grad():
            found = _output(run_tree(model, tree))[0, tree.where]
            alone = [_output(model(input_ids=torch.tensor([row], device=device), use_cache=False)) for row in rows]
    except (TypeError, ValueError, RuntimeError, IndexError, TrainingError) as error:
        return f"a pass over a tree fails: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    # Behind the first row, whose tokens stand in one piece. Rounding can grow a lot at a single token of a pretrained
    # model; what a layer should not see, or a wrong position, changes all of them.
    behind = len(rows[0]) - 1
    wanted = torch.cat([x[0, :-1] for x in alone])[behind:]
    off = ((found[behind:] - wanted).abs().amax(-1) / wanted.abs().amax(-1))[_own(rows)].median().item()
    if not math.isfinite(off):
        return "the numbers are not finite"
    if off > max(8 * torch.finfo(wanted.dtype).eps, 1e-4):
        return f"a pass over a tree gives other numbers than separate rows, by {off:.1g} of the largest"
    return ""


def _own(rows: list[list[int]]) -> list[int]:
    """Return which of the predictions behind the first row's come from tokens that the rows do not share."""
    places: list[int] = []
    start = 0
    for row in rows[1:]:
        places += range(start + _SHARED, start + len(row) - 1)
        start += len(row) - 1
    return places


def _output(result: Any) -> Tensor:
    out = result.get("logits") if result.get("logits") is not None else result["last_hidden_state"]
    assert isinstance(out, Tensor)
    return out


def _repeated(x: Tensor, heads: int) -> Tensor:
    """Give every query head the keys or values of its group. Shape: (S, K, kv_heads, d) to (S, K, heads, d)."""
    return x if x.shape[2] == heads else x.repeat_interleave(heads // x.shape[2], dim=2)


def _install() -> None:
    """Teach the attention of transformers to take a tree; without one it is what it was."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    plain = ALL_ATTENTION_FUNCTIONS["sdpa"]
    if getattr(plain, "takes_trees", False):
        return

    def attention(module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        tree = kwargs.pop(_KEY, None)
        if tree is None:
            return plain(module, query, key, value, *args, **kwargs)
        if any(kwargs.get(name) is not None for name in ("softcap", "position_bias", "s_aux")):
            raise TrainingError("this model's attention adds something to its scores, which a tree does not know")
        if (window := kwargs.get("sliding_window")) is not None and window < tree.longest:
            raise TrainingError(f"a layer sees {window} tokens, and a row has {tree.longest}; set share_prefix: off")
        scale, dropout = kwargs.get("scaling"), kwargs.get("dropout") or 0.0
        return attend(tree, query, key, value, scale=scale, dropout=dropout), None

    attention.takes_trees = True  # type: ignore[attr-defined]
    ALL_ATTENTION_FUNCTIONS["sdpa"] = attention
