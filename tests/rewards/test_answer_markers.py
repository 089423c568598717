from __future__ import annotations

from fractions import Fraction

import pytest

from trajgym.rewards.answer import read
from trajgym.rewards.answer_markers import Marker, is_heading, strong_markers, text_of, weak_markers

HASH: list[tuple[str, int | Fraction | None]] = [
    ("#### Step 2: add\n36\n#### Step 3: total\nso 96", 96),
    ("#### 3. Sum up 5\n\nIt is 96", 96),
    ("#### 3) Sum up 5\n\nIt is 96", 96),
    ("##### 96", 96),
    ("####\n96", 96),
    ("#### 96 ####", 96),
    ("#### 94 #### 96", None),
    ("#### 94\n#### 96", 96),
    ("#### Total: 96", 96),
    ("#### Total tiles: 96", 96),
    ("#### The answer is 96", 96),
    ("#### Final Answer: 96", 96),
    ("#### Conclusion\nThe total is 96", 96),
    ("#### Cost for 2 kids\nThe answer is 96.", 96),
    ("60+36=96\n#### LXXII", None),
    ("60+36=96\n#### None", None),
    ("60+36 = 96\n#### {answer}", None),
    ("####96####", 96),
    ("#### \n96", 96),
    ("#### 96\n\nNote: 60 in June and 36 in July.", 96),
    ("#### **Answer:** 96", 96),
]

BOXED: list[tuple[str, int | Fraction | None]] = [
    (r"\boxed{96 \text{ tiles}}", 96),
    (r"\boxed{96}\text{ tiles}", 96),
    (r"\boxed{x = 96}", 96),
    (r"\boxed{96 \, \text{cm}^2}", 96),
    (r"$$\boxed{96}$$", 96),
    (r"\boxed {96}", 96),
    (r"\boxed 96", 96),
    (r"\boxed{840} or \boxed{840}", 840),
    (r"\boxed{}", None),
    (r"96. \boxed{}", None),
    (r"\boxed{ }", None),
    (r"\boxed{96}}", 96),
    (r"\boxed{\boxed{96}}", 96),
    (r"\boxed{1\,000}", 1000),
    (r"\boxed{1,000}", 1000),
    (r"\boxed{\textbf{96}}", 96),
    (r"\boxed{\mathrm{96}}", 96),
    (r"\boxed{96^\circ}", 96),
    (r"\boxed{96^{\circ}\text{C}}", 96),
    (r"\boxed{96\%}", 96),
    (r"\boxed{-\frac{1}{2}}", Fraction(-1, 2)),
    (r"\boxed{\frac{-1}{2}}", Fraction(-1, 2)),
    (r"\boxed{1/2}", Fraction(1, 2)),
    (r"\boxed{\sqrt{4}}", None),
    (r"\boxed{2^3}", None),
    (r"\boxed{\frac{1}{0}}", None),
    (r"\boxed{\frac{x}{2}}", None),
    (r"\boxed{\tfrac34}", Fraction(3, 4)),
    (r"\boxed{\frac1{2}}", Fraction(1, 2)),
    (r"\boxed{60 + 36}", None),
    (r"\boxed{60 \times 2}", None),
    (r"\boxed{60 + 36 = 96}", 96),
    (r"\boxed{96.}", 96),
    (r"\boxed{\left(96\right)}", 96),
    (r"\boxed{\text{June: }96}", 96),
    (r"\boxed{3}\text{ and }\boxed{5}", None),
    (r"$\boxed{3}$, $\boxed{5}$", None),
    (r"\boxed{3} \boxed{5}", None),
    (r"\boxed{3}$ apples and $\boxed{5}$ pears", None),
    ("\\boxed{36}\n\\boxed{96}", 96),
    (r"\boxed{36} + \boxed{60} = \boxed{96}", 96),
    (r"\boxed{\$96}", 96),
    (r"\boxed{96\text{ or }97}", None),
    (r"\boxed{94, 96}", None),
    (r"\boxed{94\text{--}96}", None),
    (r"\boxed{see above} Answer: 96", None),
    (r"The answer is \boxed{96", None),
    (r"\boxed{94} ... \boxed{96", None),
    (r"\boxed{94 ... \boxed{96}", 96),
    (r"\boxed{\underline{96}}", 96),
    (r"\boxed{2 \tfrac{1}{2}}", Fraction(5, 2)),
    (r"\boxed{7\frac{3}{2}}", None),
    (r"\boxed{x + 96}", None),
    (r"\boxed{\{96\}}", 96),
    (r"\boxed{1{,}234{,}567}", 1234567),
    (r"\boxed{96\pi}", None),
    (r"\boxed{\text{Final answer: }96}", 96),
    ("\\boxed{\n96\n}", 96),
    (r"\boxed{96\ \mathrm{km/h}}", 96),
    (r"\boxed{96~\text{m}^{2}}", 96),
    (r"\boxed{96,\!000}", None),
    (r"\fbox{\$1{,}200.50}", Fraction(2401, 2)),
    (r"\boxed{96^{nd}}", 96),
    (r"\boxed{5:30}", None),
    (r"\boxed{\text{D}}", None),
    (r"\boxed{\dfrac{144}{2}}", 72),
    (r"$\boxed{96}$ tiles or 97", 96),
    (r"<answer>\boxed{}</answer> 96", None),
    (r"<answer>\boxed{94}</answer> or <answer>\boxed{96}</answer>", None),
    (r"\boxed{94}\boxed{96}", None),
    (r"\boxed{94}/\boxed{96}", None),
    (r"\boxed{94}; \boxed{96}", None),
    (r"\boxed{94} and \boxed{96}", None),
    (r"between \boxed{94} and \boxed{96}", None),
    (r"\boxed{96}, \boxed{96}", 96),
    (r"\boxed{94} - \boxed{96}", None),
    (r"\boxed{7.2\times10^1}", 72),
    (r"\boxed{7.2 \cdot 10^{1}}", 72),
    ("Final Answer:\n\\[\n\\boxed{96}\n\\]", 96),
    ("96\n\\boxed{}", None),
    (r"\boxed{1.5\text{ million}}", 1500000),
]

TAGS: list[tuple[str, int | Fraction | None]] = [
    ("<answer>96", None),
    ("<answer>96</answer", None),
    ("The answer is 96. <answer>", None),
    ("<answer>$96</answer>", 96),
    ("<answer>96 tiles</answer>", 96),
    ("<answer> </answer> 96", None),
    ("<answer>none</answer>\nThe answer is 96", None),
    ("<answer>94</answer><answer>96</answer>", None),
    ("<answer>94</answer>\n<answer>96</answer>", 96),
    ("<answer>96</answer><answer>96</answer>", 96),
    ("<answer><answer>96</answer></answer>", 96),
    ("</answer>96", 96),
    ("<answer>The answer is 96</answer>", 96),
    ("<answer>\n#### 96\n</answer>", 96),
    ("<answer>Final answer: 96</answer> 5", 96),
    ("<Answer>ninety-six</Answer>", 96),
    ("<answer>94</answer> or <answer>96</answer>", None),
    ("<answer>60 + 36 = 96</answer>", 96),
    ("<answer>94, 96</answer>", None),
    ("<answer>\n- 96\n</answer>", 96),
    ("In <answer> tags: <answer>96</answer>", 96),
    ("<answer>94\n96</answer>", None),
    (r"<answer>\frac{1}{2}</answer>", Fraction(1, 2)),
    ("<answer>96</answer>\n#### 94", 94),
    ("#### 94\n<answer>96</answer>", 96),
    ("<answer>94</answer> Wait, <answer>96</answer>", 96),
    ("96 <answer>?</answer>", None),
    ("The answer is 96 and <answer>", None),
]

LABELS: list[tuple[str, int | Fraction | None]] = [
    ("Final Answer:\n* 96", 96),
    ("Final Answer:\n– 96", 96),
    ("Final Answer:\n-96", -96),
    ("Final answer: -96", -96),
    ("Final answer is 96", 96),
    ("The final answer is: **96**", 96),
    ("**Final Answer**\n96", 96),
    ("### Final Answer:\n\n**96 tiles**", 96),
    ("Final Answer: $$96$$", 96),
    ("Final Answer:\n$$\n96\n$$", 96),
    ("Final answer (in tiles): 96", 96),
    ("Final answer: I do not know. 96", None),
    ("Final Answer: unknown", None),
    ("The sum is 96.\nFinal answer:", None),
    ("FINAL ANSWER: 96", 96),
    ("Final Answer = 96", 96),
    ("Answer: 96", 96),
    ("**Answer:** 96", 96),
    ("**Answer**: 96", 96),
    ("Answer:\n96", 96),
    ("Answer: $96", 96),
    ("answer: ninety-six", 96),
    ("the answer is $96.", 96),
    ("The answer is therefore 96.", 96),
    ("The answer isn't 96.", None),
    ("The answer is NOT 96.", None),
    ("The answer is not 94 but 96.", None),
    ("The answer is not 94. The answer is 96.", 96),
    ("The answer is definitely not 96", None),
    ("The answer is 96 tiles, because 60 + 36 = 96.", 96),
    ("The answer is 36. No wait.\nSo the answer is 96", 96),
    ("The answer is 96. The answer is clear.", 96),
    ("The answer is clear. 60 and 36 make 96.", 96),
    ("The answer is 94 or the answer is 96", None),
    ("The answer is:\n\n96", 96),
    ("The answer is\n96", 96),
    ('{"answer": 96}', 96),
    ('{"answer": 96, "steps": 2}', 96),
    ('{"answer": "96 tiles", "n": 3}', 96),
    ("{'answer': '96'}", 96),
    ('{"steps": 2, "answer": 1000.5}', Fraction(2001, 2)),
    ('{"answer":96,"unit":"tiles 5"}', 96),
    ('{"answer": [94, 96]}', None),
    ('{"answer": "94 or 96"}', None),
    ('{"answer": null, "total": 96}', 96),
    ('{"answer": -5}', -5),
    ('{\n  "answer":\n 96\n}', 96),
    ("A: 96\nA: 94", 94),
    (" A: 96 tiles", 96),
    ("The answer is 96.\nThat makes 2 months.", 96),
    ("Answer: about 96", 96),
    ("Answer: x = 96", 96),
    ("Answer: (96)", 96),
    ("Answer: (B) 96", 96),
    ("Answer: 96 or 97", None),
    ("The answer is -5.", -5),
    ("The answer is minus 5.", -5),
    ("Answer:\n- 96", 96),
    ("The answer is one hundred.", 100),
    ("The answer is 1,000.", 1000),
    ("The answer is 7 p.m. today", 7),
    ("The answer is approx. 96.", 96),
    ("Final Answer: A: 94, B: 96", 94),
    ("The answer is 96 (ninety-six).", 96),
    ("The answer is ninety-six (96).", 96),
    ("The answer is ninety-six or 97.", None),
    ("The answer is 96 or ninety-seven.", None),
    ("Final answer: between 94 and 80", None),
    ("The answer is either 94 or 96.", None),
    ("The answer is 94 to 96.", None),
    ("The answer is 94-96.", None),
    ("The answer is probably 96 or 97", None),
    ("Answer: 94/96", Fraction(47, 48)),
    ("Answer: $94/$96", None),
    ("The answer is neither 94 nor 96.", None),
    ("The answer is never 96", None),
    ("The answer is not equal to 96.", None),
    ("The answer was 96.", 96),
    ("Answer: two", 2),
    ("The answer is five and six.", None),
    ("Final Answer: Ninety-six tiles.", 96),
    ('Answer: "96"', 96),
    ("Answer: '96'", 96),
    ("Answer: `96`", 96),
    ("Answer: [96]", 96),
    ("Answer: **96 tiles**", 96),
    ("Answer: <b>96</b>", 96),
    (r"Answer: $\frac{3}{4}$", Fraction(3, 4)),
    ("**A:** 96", 96),
    ("> A: 96", 96),
    ("A : 96", 96),
    ("A:96", 96),
    ("a: 96\nb", 96),
    ('{"Answer": 96}', 96),
    ('{"answer":"$1,000"}', 1000),
    ('{"answer": {"value": 96}}', 96),
    ('{"answer": true}', None),
    ("Final answer: is 96", 96),
    ("Final Answer is: 96", 96),
    ("final answer is $96$ tiles", 96),
    ("Final Answer:96", 96),
    ("**Final Answer: 96**", 96),
    ("Final answer:  \n\n  96 tiles", 96),
    ("My final answer is not 96.", None),
    ("Final Answer: ?", None),
    ("Final answer: 96?", 96),
    ("The answer is 96.\nFinal answer: none", None),
    ("Final answer: 96 tiles (60 in June, 36 in July)", 96),
]


@pytest.mark.parametrize(("completion", "value"), HASH)
def test_hash(completion: str, value: int | Fraction | None) -> None:
    assert read(completion).value == value


@pytest.mark.parametrize(("completion", "value"), BOXED)
def test_boxed(completion: str, value: int | Fraction | None) -> None:
    assert read(completion).value == value


@pytest.mark.parametrize(("completion", "value"), TAGS)
def test_tags(completion: str, value: int | Fraction | None) -> None:
    assert read(completion).value == value


@pytest.mark.parametrize(("completion", "value"), LABELS)
def test_labels(completion: str, value: int | Fraction | None) -> None:
    assert read(completion).value == value


def test_markers_are_found_in_order_with_their_ends() -> None:
    body = r"#### 5, <answer>\boxed{6}</answer>, \fbox{7"
    hash_mark, tag, box, cut = strong_markers(body)
    assert (hash_mark.rule, hash_mark.mark) == ("hash", 0)
    assert tag == Marker(8, "answer_tag", 16, body.index("</"), body.index(">,") + 1)
    assert body[box.start : box.end] == "6"
    assert [m.unclosed for m in (hash_mark, tag, box, cut)] == [False, False, False, True]


def test_weak_markers_name_their_kind() -> None:
    body = 'The answer is 1.\nAnswer: 2\n{"answer": "3 eggs"}\nA: 4\nPart A: 5'
    found = weak_markers(body)
    assert [m.rule for m in found] == ["answer_is", "answer_label", "json", "a_line"]
    assert [body[slice(*text_of(body, m, len(body)))].strip() for m in found] == ["1.", "2", "3 eggs", "4"]


@pytest.mark.parametrize(
    ("text", "heading"),
    [
        (" Step 3: multiply by 4", True),
        (" 2. Add 5", True),
        (" **Day 2**", True),
        (" Cost for 3 people", True),
        (" Summary", True),
        (" One more thing", True),
        ("", True),
        (" 31", False),
        (" $31", False),
        (" about 31", False),
        (" Total cost: 31", False),
        (" thirty-one", False),
        (" None", False),
        (" {value}", False),
    ],
)
def test_is_heading(text: str, heading: bool) -> None:
    assert is_heading(f"####{text}", 4, 4 + len(text)) is heading
