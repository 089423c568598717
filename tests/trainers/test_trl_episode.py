"""Episodes that are played as TRL's tool loop plays them, against the environment stepped by hand."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

from trajgym.envs.sandbox import IsolationUnavailable, Pool
from trajgym.envs.tools import ToolFailure, tool
from trajgym.errors import ConfigError, EnvironmentFault, EpisodeError, UnknownNameError
from trajgym.rewards import Rubric, Schedule, accuracy
from trajgym.types import StopReason, Task

pytest.importorskip("trl")

from trajgym.policies import tiny_path
from trajgym.trainers.trl_environment import ToolEnvironment, environment_factory
from trajgym.trainers.trl_reward import EpisodeReward
from trajgym.trainers.trl_template import ready_tokenizer

END = 7  # a token that ends a turn
TASKS = [Task("sum", "What is 48 + 24?", "72", difficulty=2)]


@tool(name="counter")
class Counter:
    """Count up and return the count."""

    def open(self, seed: int) -> None:
        self.count = 0

    def __call__(self, by: int = 1) -> int:
        """Count.

        Args:
            by: How far.
        """
        self.count += by
        if self.count > 9:
            raise ToolFailure("too_far", "That is too far.")
        return self.count


@tool
def broken() -> str:
    """Fail, and not by the policy's fault."""
    raise EnvironmentFault("the disk is full")


@tool
class closed:  # noqa: N801
    """Stay closed."""

    def open(self, seed: int) -> None:
        raise ConfigError("First buy the key.")

    def __call__(self) -> str:
        return ""


def call(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


ADD = call("calculator", '{"expression": "48+24"}')


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return ready_tokenizer(AutoTokenizer.from_pretrained(tiny_path()))


def loop(environment: ToolEnvironment, texts: list[str], tokenizer: Any, rounds: int = 99) -> list[dict[str, Any]]:
    """What TRL's tool loop makes of a model that says ``texts``, one after the other."""
    from trl.chat_template_utils import parse_response

    completion: list[dict[str, Any]] = []
    for text in texts:
        said = parse_response(tokenizer, tokenizer(text + "<|im_end|>")["input_ids"], prefix=[])
        completion.append(said)
        if not said.get("tool_calls") or rounds == 0:
            break
        rounds -= 1
        for asked in said["tool_calls"]:
            name = asked["function"]["name"]
            try:
                if name not in vars(type(environment)):
                    raise ValueError(f"Tool {name} not found.")
                content = str(getattr(environment, name)(**asked["function"]["arguments"]))
            except Exception as error:
                content = str({"error": str(error)})
            completion.append({"role": "tool", "name": name, "content": content})
    return completion


def play(texts: list[str], tokenizer: Any, *, ended: bool = True, rounds: int = 99, **kwargs: Any) -> ToolEnvironment:
    environment = environment_factory("ArithmeticTool-v0", tasks=TASKS, **kwargs)()
    environment.reset(task_id="sum", prompt=[], level=3)
    completion = loop(environment, texts, tokenizer, rounds)
    EpisodeReward([END])([completion], completion_ids=[[1, END if ended else 1]], environments=[environment])
    return environment


@pytest.mark.parametrize("reward", ["sparse", "dense", "hybrid"])
@pytest.mark.parametrize(
    "texts",
    [
        ["#### 72"],
        ["#### 71"],
        [ADD, "#### 72"],
        [ADD, ADD, "#### 72"],
        [f"First.\n{ADD}\n{call('counter')}", call("counter", '{"by": 4}'), "It is #### 72"],
        [call("counter", '{"by": 44}'), "#### 72"],
        [call("counter", '{"by": 1.5}'), "#### 72"],
        [call("counter", '{"self": 1}'), call("counter", '{"no": 1}'), "#### 72"],
        [call("nothing"), ADD, "#### 72"],
        [f"{ADD}\n{call('nothing')}", "#### 72"],
        [call("nothing")] * 3 + ["#### 72"],
        [ADD] * 5 + ["#### 72"],
        [call("counter")] * 4 + ["#### 72"],
    ],
    ids=lambda texts: str(len(texts)),
)
def test_steps_are_those_of_the_environment(texts: list[str], reward: str, tokenizer: Any) -> None:
    kwargs: dict[str, Any] = {"reward": reward, "tools": ["calculator", Counter], "max_turns": 4}
    episode = play(texts, tokenizer, **kwargs).episode
    env = gymnasium.make("ArithmeticTool-v0", tasks=TASKS, **kwargs)
    env.reset(seed=0)
    expected = []
    for text in texts:
        _, paid, terminated, truncated, info = env.step(text)
        expected.append((paid, terminated, truncated, info["stop_reason"], info["reward_terms"], info["step"].results))
        if terminated or truncated:
            break
    got = [(s.reward, s.terminated, s.truncated, s.stop_reason, s.reward_terms, s.results) for s in episode.steps]
    assert got == expected
    assert episode.rewards == [paid for paid, *_ in expected]
    assert episode.over


def test_text_is_recorded_with_its_calls(tokenizer: Any) -> None:
    steps = play([f"Let me add.\n{ADD}", "#### 72"], tokenizer).episode.steps
    assert [s.action.text for s in steps] == [f"Let me add.\n{ADD}", "#### 72"]
    assert steps[0].observation.text == steps[0].results[0].content == "72"


def test_state_lasts_for_the_episode_and_no_longer(tokenizer: Any) -> None:
    environment = environment_factory("ArithmeticTool-v0", tasks=TASKS, tools=[Counter])()
    for _ in range(2):
        environment.reset(task_id="sum")
        completion = loop(environment, [call("counter"), call("counter"), "#### 72"], tokenizer)
        assert [m["content"] for m in completion if m["role"] == "tool"] == ["1", "2"]
        environment.episode.finish(completion, ended=True)
        assert len(environment.episode.steps) == 3


def test_python_keeps_its_variables(tokenizer: Any) -> None:
    try:
        with Pool():
            pass
    except IsolationUnavailable as error:
        pytest.skip(str(error))
    texts = [call("python", '{"code": "x = 48"}'), call("python", '{"code": "x + 24"}'), "#### 72"]
    episode = play(texts, tokenizer, tools=["python"], reward="sparse").episode
    assert [s.observation.text for s in episode.steps] == ["(no output)", "72", ""]
    assert episode.rewards == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("last", ["", "So it is so.", call("calculator", '{"expression": "72"}')])
def test_what_a_tool_said_is_no_answer(last: str, tokenizer: Any) -> None:
    assert sum(play([ADD, last], tokenizer, reward="sparse").episode.rewards) == 0.0


def test_a_turn_that_a_budget_cut_is_no_answer(tokenizer: Any) -> None:
    episode = play(["#### 72"], tokenizer, ended=False).episode
    assert episode.rewards == [0.0]
    assert episode.steps[-1].stop_reason is StopReason.EPISODE_TOKENS


def test_an_unreadable_call_is_no_answer(tokenizer: Any) -> None:
    episode = play(['#### 72\n<tool_call>\n{"name": "calculator"'], tokenizer).episode
    assert episode.rewards == [0.0]
    assert episode.steps[-1].stop_reason is StopReason.INVALID_CALLS


def test_what_ran_is_what_counts(tokenizer: Any) -> None:
    # A call in backticks is prose for the environment's protocol, and a call for TRL, which has run it.
    first, _ = play([f"`{ADD}`", "#### 72"], tokenizer).episode.steps
    assert [result.content for result in first.results] == ["72"]


def test_no_room_behind_the_tools_answers(tokenizer: Any) -> None:
    environment = environment_factory("ArithmeticTool-v0", tasks=TASKS, reward="dense")()
    environment.reset(task_id="sum")
    said, *_ = loop(environment, [ADD], tokenizer)
    environment.episode.finish([said], ended=True)  # TRL takes back the messages that do not fit
    reasons = [s.stop_reason for s in environment.episode.steps]
    assert reasons == [None, StopReason.EPISODE_TOKENS]
    assert sum(environment.episode.rewards) == 0.0  # what was paid for nothing is taken back


@pytest.mark.parametrize(("max_turns", "results"), [(2, 1), (5, 0)])
def test_calls_of_the_last_round(max_turns: int, results: int, tokenizer: Any) -> None:
    texts = [ADD, call("calculator", '{"expression": "72*1"}')]
    episode = play(texts, tokenizer, rounds=1, max_turns=max_turns).episode
    assert len(episode.steps[-1].results) == results
    assert [s.stop_reason for s in episode.steps] == [None, StopReason.MAX_TURNS]


def test_nothing_is_paid_after_the_end(tokenizer: Any) -> None:
    episode = play([ADD, ADD, "#### 72"], tokenizer, max_turns=2, reward="sparse").episode
    assert episode.rewards == [0.0, 0.0]
    episode.finish([{"role": "assistant", "content": "#### 72"}], ended=True)
    assert episode.rewards == [0.0, 0.0]
    with pytest.raises(EpisodeError, match="reset"):
        episode.call("calculator", {"expression": "1"})


def test_a_fault_of_ours_is_nobodys_reward(tokenizer: Any) -> None:
    factory = environment_factory("ArithmeticTool-v0", tasks=TASKS, tools=[broken])
    environments = [factory(), factory()]
    completions = []
    for environment, texts in zip(environments, ([call("broken"), "#### 72"], ["#### 72"]), strict=True):
        environment.reset(task_id="sum")
        completions.append(loop(environment, texts, tokenizer))
    logged: dict[str, float] = {}
    values = EpisodeReward([END])(
        completions, completion_ids=[[END], [END]], environments=environments, log_metric=logged.__setitem__
    )
    assert values == [None, 1.0]
    assert "disk is full" in str(environments[0].episode.fault)
    assert "disk" not in str(completions)
    assert logged["episode/faults"] == 0.5
    assert logged["episode/answered"] == logged["reward_parts/accuracy"] == 1.0


def test_mistakes_of_the_user_stop_the_run(tokenizer: Any) -> None:
    environment = environment_factory("ArithmeticTool-v0", tasks=TASKS, tools=[closed])()
    environment.reset(task_id="sum")
    completion = loop(environment, [call("closed"), "#### 72"], tokenizer)
    with pytest.raises(ConfigError, match="buy the key"):
        environment.episode.finish(completion, ended=True)


def test_arguments_that_are_no_json_crash_nothing(tokenizer: Any) -> None:
    episode = play([call("calculator", '{"expression": NaN}'), "#### 72"], tokenizer).episode
    assert episode.steps[0].error is not None
    assert episode.steps[0].error.kind == "non_finite_number"
    assert episode.over


@pytest.mark.parametrize("odd", [[], [{"role": "assistant"}], [{"role": "assistant", "content": None}]])
def test_odd_completions_score_nothing(odd: list[dict[str, Any]]) -> None:
    environment = environment_factory("ArithmeticTool-v0", tasks=TASKS)()
    environment.reset(task_id="sum")
    environment.episode.finish(odd, ended=True)
    assert environment.episode.rewards == [0.0]


def test_weights_follow_the_training() -> None:
    fading = Rubric({"accuracy": (accuracy, Schedule([(0.0, 1.0), (1.0, 0.0)]))})
    environment = environment_factory("ArithmeticTool-v0", tasks=TASKS, reward=fading)()
    for progress, paid in ((0.0, 1.0), (0.5, 0.5), (1.0, 0.0)):
        environment.reset(task_id="sum")
        environment.episode.finish([{"role": "assistant", "content": "#### 72"}], ended=True, progress=progress)
        assert environment.episode.rewards == [paid]


def test_a_row_must_name_its_task() -> None:
    environment = environment_factory("ArithmeticTool-v0", tasks=TASKS)()
    with pytest.raises(ConfigError, match=r"task_id.*dataset\(n\)"):
        environment.reset(prompt=[])
    with pytest.raises(UnknownNameError, match="sum"):
        environment.reset(task_id="difference")


def test_other_environments_are_left_alone() -> None:
    reward = EpisodeReward([END])
    assert reward([[]], completion_ids=[[END]], environments=[object()]) == [None]
