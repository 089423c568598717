"""Training rows made from dialogues that were not sampled token by token."""

from __future__ import annotations

from trajgym.policies.render import Renderer
from trajgym.types import TokenStream, Trajectory

__all__ = ["demonstration"]


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
