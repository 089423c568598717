"""An agent as a tool: a call that hands a subtask to a policy in an environment of its own.

:func:`subagent` makes such a tool for any environment. :class:`PlannerEnv` builds on it: whoever acts there names
subtasks, and the calls of the tools are made by another policy, in the world of the planner's task. The planner is
trained like any policy; the one below it is given, and its own turns are no part of the planner's trajectory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import gymnasium

from trajgym.envs.base import ToolEnv
from trajgym.envs.stage import Stage, StageEnv, verbs
from trajgym.envs.tasks import TaskSource
from trajgym.envs.tools import Tool, ToolFailure, ToolSessions
from trajgym.errors import ConfigError, EnvironmentFault
from trajgym.policies.base import Policy
from trajgym.rewards import Rubric
from trajgym.rollout import EnvPool, Episode, collect, derive_seed
from trajgym.types import ExpertTurn, StopReason, Task, Trajectory

__all__ = ["PlannerEnv", "Subagent", "subagent"]

LONGEST = 2_000
"""Most characters of what a subagent answers."""


class Subagent:
    """A policy and the environment in which it works on subtasks.

    Args:
        policy: Who works. It may be shared; subtasks wait for one another, since a policy writes for one rollout at a
            time. It must not be the policy whose call this is, nor use its sampler: that one is busy.
        make_env: Makes the environment. Its reward is of no use here and is never asked for.

    Raises:
        ConfigError: When the environment is none of ours, or has no tools.
    """

    def __init__(self, policy: Policy, make_env: Callable[[], gymnasium.Env[str, str]]) -> None:
        self.policy, self._make = policy, make_env
        self._busy = threading.Lock()
        made = self._unpaid()
        inner: Any = made.unwrapped
        if not isinstance(inner, ToolEnv):
            raise ConfigError(f"A subagent works in an environment of trajgym's, got {type(inner).__name__}.")
        self.tasks = inner.tasks
        policy.agree_on_protocol(inner.protocol, inner.tools)
        made.close()

    def play(self, task: Task, seed: int) -> Trajectory:
        """Let the policy work on a task, and return how.

        Args:
            task: The subtask; its answer is not known.
            seed: Seeds environment and policy.
        """
        episode = Episode(derive_seed(seed, "env") >> 32, derive_seed(seed, "policy"), task)
        with self._busy, EnvPool(self._unpaid, threads=1) as pool:
            return collect(self.policy, pool, [episode])[0]

    def answer(self, task: Task, seed: int) -> str:
        """Return what the policy answers: what stands behind ``####``, else its whole last turn.

        Raises:
            ToolFailure: When it comes to no answer.
            EnvironmentFault: When its environment failed.
        """
        trajectory = self.play(task, seed)
        if trajectory.fault is not None:
            raise EnvironmentFault(f"The subagent's episode failed: {trajectory.fault}")
        if trajectory.stop_reason is not StopReason.ANSWERED:
            raise ToolFailure("no_answer", f"It came to no answer ({trajectory.stop_reason.value}).")
        text = trajectory.steps[-1].action.text
        return (text.rpartition("####")[2].strip() or "(nothing)")[:LONGEST]

    def __deepcopy__(self, memo: dict[int, Any]) -> Subagent:
        return self  # it has no state of any episode

    def _unpaid(self) -> gymnasium.Env[str, str]:
        env = self._make()
        inner: Any = env.unwrapped
        inner.rubric = Rubric({})
        return env


def subagent(
    policy: Policy,
    make_env: Callable[[], gymnasium.Env[str, str]],
    *,
    name: str = "delegate",
    description: str = "Hand a subtask to an assistant and return its answer.",
) -> Tool:
    """Make a tool that is an agent.

    >>> import gymnasium
    >>> from trajgym.policies.scripted import HumanPolicy
    >>> helper = subagent(HumanPolicy(lambda prompt: "#### 72"), lambda: gymnasium.make("ArithmeticTool-v0"))
    >>> env = gymnasium.make("ArithmeticTool-v0", tools=[helper])
    >>> env.unwrapped.tools["delegate"].signature
    'delegate(subtask: string)'

    Args:
        policy: Who works on the subtasks; see :class:`Subagent`.
        make_env: Makes the environment in which it does.
        name: What the policy above writes.
        description: What it is told.

    Raises:
        ConfigError: See :class:`Subagent`.
    """
    agent = Subagent(policy, make_env)

    class Delegate:
        def open(self, seed: int) -> None:
            self.seed, self.count = seed, 0

        def __call__(self, subtask: str) -> str:
            """Work on a subtask.

            Args:
                subtask: What is to be found out, in words.
            """
            self.count += 1
            task = Task(f"subtask-{self.count}", _asked(subtask), "")
            return agent.answer(task, derive_seed(self.seed, self.count))

        def clone(self) -> Delegate:
            twin = Delegate()
            twin.seed, twin.count = self.seed, self.count
            return twin

    return Tool(Delegate, name=name, description=description)


class Team:
    """A task's world as the planner sees it: somebody who works on subtasks in it.

    Args:
        agent: Who.
        task: The planner's task; subtasks have its metadata, and so its world.
        seed: Seeds the subtasks.
    """

    def __init__(self, agent: Subagent | None, task: Task | None, seed: int) -> None:
        self._agent, self._task, self._seed, self._count = agent, task, seed, 0

    def delegate(self, subtask: str) -> str:
        """Hand a subtask to an assistant, who has the tools for it.

        Args:
            subtask: What is to be found out, in words.
        """
        assert self._agent is not None
        assert self._task is not None
        self._count += 1
        task = Task(f"{self._task.id}#{self._count}", _asked(subtask), "", metadata=self._task.metadata)
        return self._agent.answer(task, derive_seed(self._seed, self._count))


class _Planned(TaskSource):
    """The tasks of another source, with a planner's demonstrations."""

    def __init__(self, source: TaskSource, plan: Callable[[Task], tuple[ExpertTurn, ...]]) -> None:
        self._source, self._plan = source, plan

    def sample(self, rng: Any) -> Task:
        return self._with_plan(self._source.sample(rng))

    def get(self, task_id: str) -> Task:
        return self._with_plan(self._source.get(task_id))

    def _with_plan(self, task: Task) -> Task:
        return Task(task.id, task.question, task.answer, self._plan(task), task.difficulty, task.metadata)


class PlannerEnv(StageEnv):
    """The tasks of another environment, for a planner who has somebody to call its tools.

    ## Description
    The planner sees the question and one tool, ``delegate``. Each call names a subtask in words; a policy that is given
    works on it with the tools of the other environment, in the world of the same task and from its beginning, and says
    what it found. So the planner has to find out which subtasks there are, and which need what others have answered.

    ## Action Space
    ``Unicode()``: one assistant turn, as in :class:`trajgym.envs.base.ToolEnv`. Subtasks of one turn are worked on one
    after the other.

    ## Observation Space
    ``Unicode()``: what the assistant answered.

    ## Rewards
    As in :class:`trajgym.envs.base.ToolEnv`.

    ## Episode End
    As in :class:`trajgym.envs.base.ToolEnv`; ``max_turns`` defaults to 8.

    ## Arguments
    It has no id, since it takes a policy. Make it, or register it with one.

    ## Version History
    * v0: first version

    Args:
        policy: Who works on the subtasks; see :class:`Subagent`.
        make_env: Makes the environment whose tasks these are.
        plan: Returns a planner's demonstration of a task, such as :func:`trajgym.envs.choice_tasks.plan`; tasks have
            none when left out.
        tasks: Replaces the tasks of that environment.
        reward: As above.
        instructions: Short by default.
        **kwargs: Passed to :class:`trajgym.envs.base.ToolEnv`.
    """

    answer_rule: ClassVar[str] = "Delegate what has to be found out, step by step. End with #### and the number."

    def __init__(
        self,
        policy: Policy,
        make_env: Callable[[], gymnasium.Env[str, str]],
        *,
        plan: Callable[[Task], tuple[ExpertTurn, ...]] = lambda task: (),
        tasks: TaskSource | Iterable[Task] | None = None,
        instructions: str = "signature",
        **kwargs: Any,
    ) -> None:
        self._agent = Subagent(policy, make_env)
        source = _Planned(self._agent.tasks, plan) if tasks is None else tasks
        super().__init__(source, instructions=instructions, **{"tools": verbs(_NOBODY.delegate), **kwargs})

    def world(self, task: Task) -> Team:
        """Return the team that works on a task."""
        return Team(self._agent, task, 0)

    def _open_tools(self, task: Task, seed: int) -> ToolSessions:
        return Stage(self.tools, Team(self._agent, task, seed), seed=seed)


def _asked(subtask: str) -> str:
    if not subtask.strip():
        raise ToolFailure("empty", "Say in words what is to be found out.")
    return subtask


_NOBODY = Team(None, None, 0)
