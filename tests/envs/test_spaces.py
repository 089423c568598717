"""The text space, alone and in both of Gymnasium's vector environments."""

from __future__ import annotations

import copy
import json
import os
import pickle
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.utils import batch_differing_spaces, batch_space
from hypothesis import given
from hypothesis import strategies as st

from trajgym.envs.spaces import Unicode
from trajgym.errors import ConfigError

HARD = ["", "  \n\t", "\x00a\x00", "🙂\U0010ffff", "\ud800", "x" * 100_000 + "é", "ك\u202e", "end\x00", "\x00" * 9]


class Echo(gym.Env[str, str]):
    """Answers every action with itself; the third one ends the episode."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, nested: bool = False, max_length: int = 200_000) -> None:
        self.nested = nested
        space: Any = Unicode(max_length)
        self.observation_space = gym.spaces.Dict({"text": space, "n": gym.spaces.Discrete(9)}) if nested else space
        self.action_space = Unicode(max_length)
        self.steps = 0

    def _observe(self, text: str) -> Any:
        return {"text": text, "n": np.int64(self.steps)} if self.nested else text

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(f"start {seed}"), {}

    def step(self, action: str) -> Any:
        self.steps += 1
        return self._observe(action), 1.0, self.steps == 3, False, {}


class TestSpace:
    @given(st.text(alphabet=st.characters(), max_size=50))
    def test_every_text_is_legal(self, text: str) -> None:
        space = Unicode()
        assert text in space
        assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable([text])))) == [text]

    @pytest.mark.parametrize("value", [None, 1, b"a", ["a"], ("a",), np.array("a")])
    def test_nothing_else_is(self, value: object) -> None:
        assert value not in Unicode()

    def test_length_is_limited(self) -> None:
        assert "abc" in Unicode(3)
        assert "abcd" not in Unicode(3)

    @pytest.mark.parametrize("length", [0, -1, 1.5, True, "3", None])
    def test_a_useless_limit_is_refused(self, length: Any) -> None:
        with pytest.raises(ConfigError, match="max_length"):
            Unicode(length)

    def test_samples_are_seeded_varied_and_legal(self) -> None:
        space, same, other = Unicode(seed=3), Unicode(seed=3), Unicode(seed=4)
        before = np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
        samples = [space.sample() for _ in range(200)]
        assert samples == [same.sample() for _ in range(200)]
        assert samples != [other.sample() for _ in range(200)]
        assert before == np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
        assert all(sample in space for sample in samples)
        characters = set("".join(samples))
        assert "" in samples
        assert {"\n", "\x00", "a", "<"} <= characters
        assert any(ord(c) > 0xFFFF for c in characters)
        "".join(samples).encode()

    def test_samples_respect_a_small_limit(self) -> None:
        space = Unicode(2, seed=0)
        assert {len(space.sample()) for _ in range(50)} == {0, 1, 2}

    def test_masks_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="mask"):
            Unicode().sample(mask=(1, None))  # type: ignore[arg-type]

    def test_equality_hash_repr_copies(self) -> None:
        assert Unicode(5) == Unicode(5, seed=1)
        assert hash(Unicode(5)) == hash(Unicode(5, seed=1))
        assert Unicode(5) != Unicode(6)
        assert Unicode(5) != gym.spaces.Text(5)
        assert eval(repr(Unicode(5))) == Unicode(5)
        space = Unicode(5, seed=0)
        for twin in (copy.deepcopy(space), pickle.loads(pickle.dumps(space))):
            assert twin == space
            assert twin.sample() == copy.deepcopy(space).sample()

    def test_batches_are_tuples(self) -> None:
        batch = batch_space(Unicode(5), 3)
        assert batch.contains(("a", "", "\x00"))
        assert all(isinstance(text, str) for text in batch.sample())
        differing = batch_differing_spaces([Unicode(5), Unicode(9)])
        assert differing.contains(("a", "b" * 9))


def make(mode: str, count: int, **kwargs: Any) -> Any:
    envs = [lambda: Echo(**kwargs)] * count
    if mode == "sync":
        return SyncVectorEnv(envs)
    return AsyncVectorEnv(envs, shared_memory=mode == "shared", context="fork")


@pytest.fixture(autouse=True)
def _forking_is_meant() -> Any:
    with warnings.catch_warnings():
        # Python 3.12 and later warn of fork() when any library has a thread; Gymnasium's default is to fork.
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        yield


@pytest.mark.parametrize("mode", ["sync", "piped", "shared"])
class TestVector:
    def test_texts_arrive_unharmed(self, mode: str) -> None:
        envs = make(mode, 3)
        try:
            texts, _ = envs.reset(seed=5)
            assert texts == ("start 5", "start 6", "start 7")
            first = texts
            for turn in range(7):
                actions = tuple(HARD[(3 * turn + i) % len(HARD)] for i in range(3))
                texts, _, ended, _, _ = envs.step(actions)
                assert type(texts) is tuple
                assert all(type(text) is str for text in texts)
                # Every fourth step is Gymnasium's reset after the third, which ends the episode.
                assert texts == (("start None",) * 3 if turn % 4 == 3 else actions)
                assert ended.tolist() == [turn % 4 == 2] * 3
                assert texts in envs.observation_space
            assert first == ("start 5", "start 6", "start 7")
        finally:
            envs.close()

    def test_inside_a_dictionary(self, mode: str) -> None:
        envs = make(mode, 2, nested=True)
        try:
            envs.reset(seed=0)
            for actions in (("a\x00", "🙂"), ("", "b" * 70_000)):
                observation = envs.step(actions)[0]
                assert observation["text"] == actions
                assert type(observation["text"]) is tuple
        finally:
            envs.close()

    def test_samples_are_actions(self, mode: str) -> None:
        envs = make(mode, 2)
        try:
            envs.reset(seed=0)
            envs.action_space.seed(1)
            actions = envs.action_space.sample()
            assert envs.step(actions)[0] == actions
        finally:
            envs.close()


class TestSharedMemory:
    def test_make_vec_with_default_arguments(self) -> None:
        gym.register("Echo-v0", entry_point=Echo)
        try:
            envs = gym.make_vec("Echo-v0", num_envs=2, vectorization_mode="async")
            envs.reset(seed=0)
            for actions in zip(HARD[::2], HARD[1::2], strict=False):
                texts = envs.step(actions)[0]
                if texts == ("start None",) * 2:
                    texts = envs.step(actions)[0]
                assert texts == actions
        finally:
            envs.close()
            del gym.registry["Echo-v0"]

    def test_a_partial_reset_leaves_the_others_alone(self) -> None:
        envs = make("shared", 2)
        try:
            envs.reset(seed=0)
            envs.step(("a", "b"))
            assert envs.reset(seed=7, options={"reset_mask": np.array([True, False])})[0] == ("start 7", "b")
        finally:
            envs.close()

    def test_a_shorter_text_leaves_nothing_of_the_longer_one(self) -> None:
        envs = make("shared", 1)
        try:
            envs.reset(seed=0)
            assert envs.step(("long" * 1000,))[0] == ("long" * 1000,)
            assert envs.step(("s",))[0] == ("s",)
        finally:
            envs.close()

    def test_without_copies_the_batch_is_live(self) -> None:
        envs = AsyncVectorEnv([Echo, Echo], copy=False, context="fork")
        try:
            live, _ = envs.reset(seed=0)
            assert envs.step(("a", "b"))[0] == ("a", "b")
            assert live == ("a", "b")
            assert (live[0], live[-1], live[:1], len(live), repr(live)) == ("a", "b", ("a",), 2, "('a', 'b')")
        finally:
            envs.close()

    def test_spawned_workers_share_it_too(self) -> None:
        envs = AsyncVectorEnv([Echo, Echo], context="spawn")
        try:
            assert envs.reset(seed=0)[0] == ("start 0", "start 1")
            assert envs.step(("\x00", "b" * 100_000))[0] == ("\x00", "b" * 100_000)
        finally:
            envs.close()

    def test_too_long_an_observation_is_an_error_not_a_cut(self) -> None:
        envs = AsyncVectorEnv([lambda: Echo(max_length=20)], context="fork")
        try:
            envs.reset(seed=0)
            gym.logger.min_level, level = 50, gym.logger.min_level
            with pytest.raises(ValueError, match="not in its space"):
                envs.step(("x" * 21,))
        finally:
            gym.logger.min_level = level
            envs.close()

    def test_no_descriptor_stays_open(self) -> None:
        def cycle() -> int:
            envs = make("shared", 2)
            envs.reset(seed=0)
            envs.close()
            del envs
            return len(os.listdir("/proc/self/fd"))

        cycle()
        assert cycle() == cycle()
        assert not [name for name in os.listdir("/dev/shm") if name.startswith("trajgym-")]
