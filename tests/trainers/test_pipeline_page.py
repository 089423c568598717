"""The summary shows whatever it is given, and nothing in it can act."""

from __future__ import annotations

import html
from html.parser import HTMLParser

from trajgym.trainers.pipeline_page import Section, as_html, as_markdown

HOSTILE = "<script>alert(1)</script> `x` | [a](javascript:1) \x00\u202e\ud800 <img src=x onerror=1>\n# no title"


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.attributes: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += [name for name, _ in attrs]


def sections(text: str) -> list[Section]:
    return [Section(text, [text], [text, "b"], [[text, text]]), Section("left out")]


def test_hostile_text_stays_text_on_the_page() -> None:
    page = as_html(HOSTILE, sections(HOSTILE))
    tags = Tags(page)
    assert not {"script", "img", "a"} & set(tags.seen)
    assert "onerror" not in tags.attributes
    assert "alert(1)" in html.unescape(page)
    assert "\\u202e" in page
    assert page.encode("utf-8")
    assert "left out" not in page


def test_hostile_text_breaks_no_line_of_markdown() -> None:
    lines = as_markdown(HOSTILE, sections(HOSTILE)).split("\n")
    assert [line for line in lines if line.startswith("#")] == [lines[0], lines[2]]
    assert all("<" not in line and "[" not in line for line in lines)
    table = [line for line in lines if line.startswith("|")]
    assert [line.count("|") for line in table] == [3, 3, 3]


def test_plain_text_is_readable() -> None:
    text = as_markdown("Run", [Section("Next", ["See runs/a_b/x.html, 50 % (40 … 60)."])])
    assert "- See runs/a_b/x.html, 50 % (40 … 60)." in text
