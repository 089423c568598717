from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajgym.rewards.answer import read
from trajgym.rewards.answer_reply import reply

REPLY: list[tuple[str, int | Fraction | None]] = [
    ("A: 96\nQuestion: 5 and 6?\nA: 11", 96),
    ("Answer: 96\n\nQ: next\nA: 5", 96),
    ("Answer: 96\nUser: thanks\nAnswer: 5", 96),
    ("#### 96\n\nProblem: other\n#### 5", 96),
    ("#### 96\n**Question:** other\n#### 5", 96),
    ("Question: 60+36?\nAnswer: 96", 96),
    ("Q: x\nA: 96", 96),
    ("<thinking>94</thinking>#### 96", 96),
    ("#### 96\n<think>but wait 94", 96),
    ("<think>a</think><think>b 5</think>96", 96),
    ("<think>a<think>b</think>c</think>#### 96", 96),
    ("<think>#### 96</think>", None),
    ("<THINK>x</THINK>96", 96),
    ("a</think>b</think>96", 96),
    ("<think>\n#### 96\n</think>\n\nA: 94", 94),
    ("96 </think>", None),
    ("<thinking>96", None),
    ('<tool_call>{"e": "60+36"}', None),
    ("<tool_response>96", None),
    ("<tool_call>1</tool_call>\n<tool_response>96</tool_response>", None),
    ("```output\n96\n```", None),
    ("```text\n96\n```", 96),
    ('```json\n{"answer": 96}\n```', 96),
    ("```python\nprint(96)", None),
    ("```py\nx=1\n```\n```output\n94\n```\nSo 96", 96),
    ("```python\nx\n``` So it is 96", 96),
    ("```markdown\n#### 96\n```", 96),
    ("~~~python\n96\n~~~", None),
    ("```\n#### 96\n```", 96),
    ("#### 96\n```python\nprint(94)\n```", 96),
    ("<<60+36=96>>", None),
    ("she has <<60+36=96>>96", 96),
    ("#### <<60+36=96>>96", 96),
    ("#### $<<60+36=96>>96", 96),
    ("So 5 + <<5+2=7", None),
    ("```bash\necho 96\n```", None),
    ("```96```", 96),
    ("#### 96<|endoftext|>#### 5", 96),
    ("#### 96<|eot_id|>5", 96),
    ("<|im_end|>#### 96", None),
    ("#### 96</s><s>#### 5", 96),
    ('```json\n{"answer": 96, "confidence": 0.9}\n```', 96),
    ("It is 96.\nQuestion: 5", 5),
    ("#### 96\n  Q: next?\n#### 9", 96),
    ("\\boxed{96}\nHuman: and 5?\n\\boxed{5}", 96),
    ("#### 96\nquestion: x\n#### 5", 96),
    ("#### 96\nThe Question: x\n#### 5", 5),
    ("<think>\n\\boxed{94}\n</think>\n96", 96),
    ("<think>x</think>\n<think>y</think>\n#### 96", 96),
    ("<think>\n96\n</think>", None),
    ("#### 96</think>#### 94", 94),
    ("<tool_call>\n{}\n</tool_call>", None),
    ("```python\nx=96\n```\n", None),
    ("```\n94\n```\n#### 96", 96),
    ("``` python\n96\n```", None),
    ("```Python\n96\n```", None),
    ("```python3\nprint(1)\n```\n```output\n1\n```\nSo \\boxed{96}", 96),
    ("```c\n96\n```", None),
    ("```text\n#### 96\n```", 96),
    ("<<1+1=2>>", None),
    ("<think>x</think>                                A: 96", 96),
    ("#### 4\n\nUser: hi 5", 4),
    ("#### 96<|end_of_text|>#### 5", 96),
    ("#### 96<|eom_id|>#### 5", 96),
    ("#### 96<end_of_turn>\n#### 5", 96),
    ("#### 96<｜end▁of▁sentence｜>#### 5", 96),
    ("#### 96\n<|im_start|>user\nNo, #### 5", 96),
    ("#### 96\n<|start_header_id|>user\n#### 5", 96),
    ("<|im_start|>assistant\n#### 96", 96),
    ("\n <|im_start|>assistant\n#### 96<|im_end|>\n<|im_start|>user\n#### 5", 96),
    ("I write no `<think>` tag. #### 96", 96),
    ("`</think>` ends it. #### 96", 96),
    ("<think>a `</think>` b #### 5</think> #### 96", 96),
    ("```python\n94\n```</think>96", 96),
    ("<think>```\n#### 94\n```</think>96", 96),
    ("<Thinking>94</THINKING>96", 96),
    ("> ~~~python\n> 94\n> ~~~\n96", 96),
    ("- ~~~~py\n  94\n  ~~~\n  95\n  ~~~~\n96", 96),
]


@pytest.mark.parametrize(("completion", "value"), REPLY)
def test_reply(completion: str, value: int | Fraction | None) -> None:
    assert read(completion).value == value


MARKS = (
    "<think> </think> <thinking> <tool_call> </tool_call> <tool_response> ``` ```python ~~~ << >> ~~ <|im_end|> </s>"
)


@settings(deadline=None)
@given(st.lists(st.one_of(st.sampled_from([*MARKS.split(), "\n"]), st.text(max_size=5)), max_size=30).map("".join))
def test_what_is_not_the_reply_is_blanked_in_place(completion: str) -> None:
    body = reply(completion)
    assert len(body) <= len(completion)
    assert all(kept in (" ", written) for kept, written in zip(body, completion, strict=False))
    assert "<think>" not in body.lower().replace("`<think>", "").replace("<think>`", "")
    assert "<tool_call>" not in body


def test_plain_text_is_the_reply() -> None:
    assert reply("5 < 6, ``x`` and 7 > 6") == "5 < 6, ``x`` and 7 > 6"
