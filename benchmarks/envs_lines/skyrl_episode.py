"""A scripted episode of two turns; its GSM8K calls no tools."""

import skyrl_gym

extras = {"reward_spec": {"ground_truth": "72"}, "max_turns": 2}
env = skyrl_gym.make("gsm8k_multi_turn", extras=extras)
prompt, metadata = env.init([{"role": "user", "content": "What is 48 + 24?"}])
for action in ("48 + 24 = 72.", "#### 72"):
    outcome = env.step(action)
reward = outcome["reward"]
