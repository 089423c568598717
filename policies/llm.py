"""A language model as a policy: a renderer for the tokens between turns, a sampler for the tokens within."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trajgym.errors import ConfigError, EpisodeError, TemplateError, UnknownNameError
from trajgym.policies.base import LostTurn, Policy, SampledTurn, Sampler
from trajgym.policies.render import Renderer
from trajgym.protocols import Protocol, get_protocol
from trajgym.protocols.describe import example_call
from trajgym.types import Action, Message, Observation, Task, TokenStream, ToolCall, ToolSpec, in_view

__all__ = ["LLMPolicy"]


@dataclass
class _Row:
    """A training row while it grows."""

    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def given(self, ids: Sequence[int]) -> None:
        self._append(ids, 0, -1, [0.0] * len(ids))

    def sampled(self, ids: Sequence[int], turn: int, logprobs: Sequence[float]) -> None:
        self._append(ids, 1, turn, logprobs)

    def frozen(self) -> TokenStream:
        return TokenStream(tuple(self.ids), tuple(self.mask), tuple(self.turns), tuple(self.logprobs))

    def _append(self, ids: Sequence[int], mask: int, turn: int, logprobs: Sequence[float]) -> None:
        self.ids += ids
        self.mask += [mask] * len(ids)
        self.turns += [turn] * len(ids)
        self.logprobs += logprobs


@dataclass
class _Episode:
    seed: int
    messages: list[Message]
    context: list[int] = field(default_factory=list)  # of the turn asked for last, also where it leaves no room
    rows: list[_Row] = field(default_factory=list)
    turn: int = 0
    stream: int | None = None  # its open stream in the sampler
    limit: int = 0  # of the turn being written
    waits: bool = True  # for the policy, not for its environment
    cut: bool = False  # by a budget: nothing may follow


class LLMPolicy(Policy):
    """Plays many episodes at once with one language model.

    The tokens that were sampled are the tokens that are trained. Where the renderer is append-only an episode is one
    row of tokens and one stream of the sampler, or one for each dialogue where an observation begins anew; elsewhere
    each turn is a row and a stream of its own, with exactly the context it was sampled in.

    Budgets are checked before the environment sees an action. A turn that was cut says so in ``Action.finish``, and
    so does the empty action of an episode whose next observation leaves no room for a new token.

    Args:
        sampler: The token engine. Make it with ``stop_ids=renderer.stop_ids``.
        renderer: Writes the dialogue in the model's own form.
        max_turn_tokens: Most tokens the policy may sample in one turn.
        max_episode_tokens: Most tokens of a row: prompt, turns and observations together. Where an episode is one row,
            most tokens of the episode.
        protocol_mismatch: ``"error"``, or ``"allow"`` to play also where calls are written in another form than in the
            chat template.

    Raises:
        ConfigError: When a budget is below 1, or an episode would not fit the sampler.
    """

    def __init__(
        self,
        sampler: Sampler,
        renderer: Renderer,
        *,
        max_turn_tokens: int,
        max_episode_tokens: int,
        protocol_mismatch: str = "error",
    ) -> None:
        if protocol_mismatch not in ("allow", "error"):
            raise UnknownNameError("protocol_mismatch", protocol_mismatch, ("allow", "error"))
        for name, value in (("max_turn_tokens", max_turn_tokens), ("max_episode_tokens", max_episode_tokens)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}.")
        if max_episode_tokens > sampler.max_length:
            raise ConfigError(
                f"max_episode_tokens={max_episode_tokens} exceeds the sampler's max_length={sampler.max_length}. "
                "Lower the one or raise the other."
            )
        self.sampler = sampler
        self.renderer = renderer
        self._max_turn = max_turn_tokens
        self._max_episode = max_episode_tokens
        self._insists = protocol_mismatch == "allow"
        self._episodes: dict[int, _Episode] = {}
        self._writer: dict[int, int] = {}  # stream -> episode
        self._full: list[int] = []  # episodes without room for another turn

    @property
    def capacity(self) -> int:
        """How many episodes may be live at once."""
        return self.sampler.slots

    def start(self, episode: int, messages: Sequence[Message], *, task: Task, seed: int) -> None:
        """Begin an episode and ask for its first turn; the task is not looked at.

        Raises:
            EpisodeError: When the number is taken or every slot of the sampler is.
            TemplateError: When the chat template refuses the prompt.
        """
        self._begin(episode, messages, self.renderer.prompt(messages), seed)

    def resume(
        self, episode: int, messages: Sequence[Message], tokens: Sequence[int], *, task: Task, seed: int
    ) -> None:
        """Begin an episode in the middle of a dialogue, in the very tokens in which it was held so far.

        In the rows of such an episode these tokens are context: they carry mask 0, and turns count from 0 after them.

        Args:
            episode: The caller's number for it, unused by any live episode.
            messages: The dialogue so far.
            tokens: From :meth:`context`; rendered from the messages when empty, as for a dialogue without a model.
            task: Not looked at.
            seed: Seeds the draws from here on.

        Raises:
            EpisodeError: When the number is taken or every slot of the sampler is.
            TemplateError: When the chat template refuses the messages.
        """
        seen = in_view(messages)
        self._begin(episode, seen, list(tokens) or self.renderer.prompt(seen), seed)

    def observe(self, episode: int, messages: Sequence[Message]) -> None:
        """Append what the environment answered and ask for the next turn.

        Where the answer begins anew (:attr:`trajgym.types.Observation.begins_anew`), a new row and a new stream begin
        with it: the model sees nothing of the dialogue before, and budgets count from there.

        Raises:
            EpisodeError: When the episode has ended, or its turn is not out yet.
            TemplateError: When the chat template refuses the messages.
        """
        entry = self._find(episode)
        if entry.waits or entry.cut:
            state = "was cut by a budget and cannot go on" if entry.cut else "still owes a turn: call poll()"
            raise EpisodeError(f"Episode {episode} {state}.")
        anew = Observation(tuple(messages)).begins_anew
        entry.messages = [*([] if anew else entry.messages), *messages]
        entry.waits = True
        if anew or not self.renderer.append_only:
            self._release(entry)
            self._begin_row(episode, entry, self.renderer.prompt(entry.messages))
            return
        row = entry.rows[-1]
        ids = self.renderer.bridge(messages, ended=row.ids[-1] == self.renderer.end_id)
        entry.context = [*row.ids, *ids]
        if self._room(episode, len(entry.context)):
            assert entry.stream is not None
            row.given(ids)
            self.sampler.extend(entry.stream, ids)
            self._generate(entry)

    def context(self, episode: int) -> tuple[int, ...]:
        """Return the tokens before the turn that was asked for last, where :meth:`resume` can go on.

        Raises:
            EpisodeError: When there is no such episode.
        """
        return tuple(self._find(episode).context)

    def poll(self) -> list[tuple[int, Action]]:
        """Sample a token in every waiting turn; return the turns that are ready."""
        ready = []
        full, self._full = self._full, []
        for episode in full:
            entry = self._episodes[episode]
            entry.waits, entry.cut = False, True
            ready.append((episode, Action("", finish="episode_tokens")))
        if self._writer:
            ready += [self._turn(turn) for turn in self.sampler.step()]
        return ready

    def finish(self, episode: int) -> tuple[TokenStream, ...]:
        """End an episode, wherever it stands, and return its token rows: those in which something was sampled.

        Raises:
            EpisodeError: When there is no such episode.
        """
        entry = self._find(episode)
        self._release(entry)
        del self._episodes[episode]
        self._full = [other for other in self._full if other != episode]
        return tuple(row.frozen() for row in entry.rows if any(row.mask))

    def agree_on_protocol(self, protocol: Protocol, tools: Mapping[str, ToolSpec], *, named: bool = True) -> Protocol:
        """Return the protocol of the chat template, or the environment's where the template has none.

        Args:
            protocol: The environment's.
            tools: The environment's.
            named: Whether somebody chose that protocol. Then it stays, if it is the template's or they insist.

        Raises:
            ConfigError: When it is not the template's, or cannot call any of the tools.
            TemplateError: When the template writes calls in a form that nobody reads, or the tokenizer cannot write
                this one.
        """
        own = None if named and self._insists else self.renderer.protocol
        if own is not None and own != protocol.name:
            if named:
                raise ConfigError(
                    f"The environment reads calls in the protocol {protocol.name!r}, but the policy's chat template "
                    f"writes them in {own!r}. Make the environment with protocol={own!r} (a run takes it by itself: "
                    "protocol: auto), or insist with protocol_mismatch='allow'."
                )
            protocol = get_protocol(own)
        self._require_writable(protocol, tools)
        return protocol

    def _turn(self, turn: SampledTurn) -> tuple[int, Action]:
        episode = self._writer[turn.stream]
        entry = self._episodes[episode]
        if turn.error is not None:
            entry.waits, entry.cut = False, True
            return episode, LostTurn("", error=turn.error)
        entry.rows[-1].sampled(turn.ids, entry.turn, turn.logprobs)
        entry.turn += 1
        entry.waits = False
        finish = turn.finish
        if finish == "length":
            finish = "turn_tokens" if entry.limit == self._max_turn else "episode_tokens"
            entry.cut = True
        text = self.renderer.decode(turn.ids)
        entry.messages.append(Message("assistant", text))
        return episode, Action(text, turn.ids, turn.logprobs, finish=finish)

    def _require_writable(self, protocol: Protocol, tools: Mapping[str, ToolSpec]) -> None:
        """Raise unless there is something to call, and calls survive the tokenizer."""
        if tools and not protocol.instructions(tools):
            raise ConfigError(
                f"The protocol {protocol.name!r} can call none of the environment's tools: {', '.join(sorted(tools))}. "
                "Choose another protocol or other tools."
            )
        for tool in tools.values():
            example = example_call(tool)["arguments"]
            arguments = {key: "1" if isinstance(value, str) else value for key, value in example.items()}
            try:
                text = protocol.render(ToolCall(tool.name, arguments))
            except ConfigError:  # some forms call one kind of tool alone
                continue
            back = self.renderer.decode(self.renderer.turn(text))
            if protocol.parse(back, tools) != protocol.parse(text, tools):
                raise TemplateError(
                    f"The policy's tokenizer cannot write calls in the protocol {protocol.name!r}: {text!r} comes back "
                    f"as {back!r}. Choose another protocol or another model."
                )

    def _begin(self, episode: int, messages: Sequence[Message], ids: list[int], seed: int) -> None:
        if episode in self._episodes:
            raise EpisodeError(f"Episode {episode} is live already. Finish it first, or choose another number.")
        entry = _Episode(seed, list(messages))
        self._begin_row(episode, entry, ids)
        self._episodes[episode] = entry

    def _begin_row(self, episode: int, entry: _Episode, ids: list[int]) -> None:
        entry.context = ids
        if self._room(episode, len(ids)):
            # A stream of its own for each turn must not repeat the draws of the turn before.
            entry.stream = self.sampler.open(ids, seed=entry.seed + (entry.turn << 40))
            self._writer[entry.stream] = episode
            entry.rows.append(_Row())
            entry.rows[-1].given(ids)
            self._generate(entry)

    def _room(self, episode: int, length: int) -> bool:
        if length < self._max_episode:
            return True
        self._full.append(episode)
        return False

    def _generate(self, entry: _Episode) -> None:
        assert entry.stream is not None
        entry.limit = min(self._max_turn, self._max_episode - len(entry.rows[-1].ids))
        self.sampler.generate(entry.stream, max_new_tokens=entry.limit)

    def _release(self, entry: _Episode) -> None:
        if entry.stream is not None:
            self.sampler.close(entry.stream)
            del self._writer[entry.stream]
            entry.stream = None

    def _find(self, episode: int) -> _Episode:
        if episode not in self._episodes:
            known: Iterable[int] = sorted(self._episodes)
            raise EpisodeError(f"There is no live episode {episode}. Live: {list(known)}.")
        return self._episodes[episode]
