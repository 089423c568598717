"""Training rows made from dialogues that were not sampled token by token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trajgym.errors import DataError, TemplateError
from trajgym.policies.render import Renderer
from trajgym.protocols import get_protocol
from trajgym.trainers.data_messages import as_dialogue, read_messages
from trajgym.types import Message, Step, TokenStream, Trajectory

__all__ = ["demonstration", "dialogues", "tokenized"]

_FORMS = "{prompt, completion}, {messages} or a Trajectory"


def demonstration(renderer: Renderer, trajectory: Trajectory) -> TokenStream:
    """Return a trajectory's dialogue as one row for supervised training.

    Every assistant turn is trained, its end-of-turn token included; prompts and observations are not.

    Args:
        renderer: Writes the dialogue in the model's own form; must be append-only.
        trajectory: A demonstration, e.g. played by :class:`trajgym.policies.scripted.ExpertPolicy`.
    """
    ids = renderer.prompt(trajectory.prompt)
    mask, turns = [0] * len(ids), [-1] * len(ids)
    for t, step in enumerate(trajectory.steps):
        written = [*renderer.turn(step.action.text), renderer.end_id]
        ids += written
        mask += [1] * len(written)
        turns += [t] * len(written)
        if t + 1 < len(trajectory.steps):  # behind the last turn there is nothing left to say
            between = renderer.bridge(step.observation.messages, ended=True)
            ids += between
            mask += [0] * len(between)
            turns += [-1] * len(between)
    return TokenStream(tuple(ids), tuple(mask), tuple(turns), (0.0,) * len(ids))


def dialogues(trajectory: Trajectory) -> list[Trajectory]:
    """Cut a trajectory where an observation begins anew: each part is a dialogue that a model sees as a whole."""
    parts: list[Trajectory] = []
    prompt, steps = trajectory.prompt, list[Step]()
    for step in trajectory.steps:
        steps.append(step)
        if step.observation.begins_anew:
            parts.append(Trajectory(trajectory.task, prompt, tuple(steps), seed=trajectory.seed))
            prompt, steps = step.observation.messages, []
    if steps or not parts:
        parts.append(Trajectory(trajectory.task, prompt, tuple(steps), seed=trajectory.seed))
    return parts


def tokenized(rows: Iterable[Mapping[str, Any] | Trajectory], renderer: Renderer) -> list[dict[str, list[int]]]:
    """Return rows for supervised training as tokens: ``input_ids`` and ``completion_mask``, of the same length.

    The mask is 1 on what the assistant wrote, the end-of-turn token included, and 0 elsewhere. A row is one of

    - ``{prompt, completion}``, two texts that a chat template has rendered already, such as those of
      :func:`trajgym.trainers.datasets.create_sft_dataset`: the completion is trained;
    - ``{prompt, completion}``, two lists of messages: the assistant's messages of the completion are trained;
    - ``{messages, tools?}``: all of the assistant's messages are trained; see
      :func:`trajgym.trainers.data_messages.read_messages`;
    - a :class:`~trajgym.types.Trajectory`: all of its turns are trained.

    Each becomes one row, a trajectory one for each of its :func:`dialogues`. Where the template rewrites its history
    (``renderer.append_only`` is false), each trained turn becomes a row of its own, with the context in which the
    policy would write it.

    Args:
        rows: The rows; further columns are not looked at.
        renderer: Writes a dialogue in the model's own form.

    Raises:
        DataError: When a row has another form, has nothing to train, or was cut short.
        TemplateError: When texts are not in the form of the model's template, or the template refuses a dialogue.
    """
    out = []
    for number, row in enumerate(rows):
        for stream in _streams(row, renderer, f"Row {number}"):
            out.append({"input_ids": list(stream.ids), "completion_mask": list(stream.mask)})
    return out


def _streams(row: Any, renderer: Renderer, where: str) -> list[TokenStream]:
    if isinstance(row, Trajectory):
        _check_whole(row, where)
        return [stream for part in dialogues(row) for stream in _of_dialogue(part, renderer)]
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: expected {_FORMS}, got {type(row).__name__}.")
    if row.get("messages") is not None:
        protocol = get_protocol(renderer.protocol or "hermes")
        messages = read_messages(row["messages"], protocol, tools=row.get("tools"), where=f"{where}, messages")
        return _of_dialogue(as_dialogue(messages, where), renderer)
    prompt, completion = row.get("prompt"), row.get("completion")
    if isinstance(prompt, str) and isinstance(completion, str):
        return [_of_texts(prompt, completion, renderer, where)]
    if prompt is None or completion is None or isinstance(prompt, str) or isinstance(completion, str):
        raise DataError(
            f"{where}: expected {_FORMS}, prompt and completion both texts or both lists of messages; the columns are "
            f"{', '.join(map(str, row)) or 'none'}."
        )
    protocol = get_protocol(renderer.protocol or "hermes")
    before = read_messages(prompt, protocol, tools=row.get("tools"), where=f"{where}, prompt")
    after = read_messages(completion, protocol, where=f"{where}, completion")
    if after[0].role != "assistant":
        raise DataError(f"{where}, completion: must begin with the assistant's message, got {after[0].role!r}.")
    return _of_dialogue(as_dialogue([*before, *after], where, trained_from=len(before)), renderer)


def _check_whole(trajectory: Trajectory, where: str) -> None:
    what = f"{where} (task {trajectory.task.id!r})"
    if not trajectory.valid:
        raise DataError(f"{what}: a trajectory without steps or with a fault has nothing to train: {trajectory.fault}.")
    for t, step in enumerate(trajectory.steps):
        if step.action.finish != "stop":
            raise DataError(f"{what}: turn {t} was cut by a budget ({step.action.finish}), so it has no end to train.")


def _of_dialogue(trajectory: Trajectory, renderer: Renderer) -> list[TokenStream]:
    if renderer.append_only:
        return [demonstration(renderer, trajectory)]
    rows = []
    before = list(trajectory.prompt)
    for step in trajectory.steps:
        rows.append(demonstration(renderer, Trajectory(trajectory.task, tuple(before), (step,))))
        before += [Message("assistant", step.action.text), *step.observation.messages]
    return rows


def _of_texts(prompt: str, completion: str, renderer: Renderer, where: str) -> TokenStream:
    probe = [Message("user", "?")]
    header = renderer.prompt(probe)[len(renderer.one_shot(probe)) :]
    given, written = renderer.rendered(prompt), renderer.rendered(completion)
    if not given or given[len(given) - len(header) :] != header:
        raise TemplateError(
            f"{where}: the prompt must end as the model's template begins a turn, {renderer.decode(header)!r}, got "
            f"…{prompt[-40:]!r}. Render it with this model's template, or give lists of messages."
        )
    if written[-1:] != [renderer.end_id] or renderer.turn(renderer.decode(written)) != written[:-1]:
        end = renderer.decode([renderer.end_id] * 2)  # the last one is taken off
        raise TemplateError(
            f"{where}: the completion must be one turn with {end!r} at its end and no other control token, got "
            f"…{completion[-40:]!r}. Render it with this model's template, or give lists of messages."
        )
    n, m = len(given), len(written)
    return TokenStream((*given, *written), (0,) * n + (1,) * m, (-1,) * n + (0,) * m, (0.0,) * (n + m))
