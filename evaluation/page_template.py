"""The look of the report's page: its structure, its style and its script, as text."""

from __future__ import annotations

__all__ = ["SCRIPT", "STYLE", "TEMPLATE"]

STYLE = """
:root { --ink: #1d2430; --soft: #5b6575; --line: #d8dde5; --paper: #ffffff; --shade: #f4f6f9; --right: #19733a;
  --wrong: #b3261e; --link: #2a5db0; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #a0aaba; --line: #39424f; --paper: #161a20;
  --shade: #1f252d; --right: #6fce8e; --wrong: #ff8a80; --link: #8ab4f8; } .charts svg { background: #fff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 78rem; padding: 1.5rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p, ul { margin: .4rem 0; } .soft, dt { color: var(--soft); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: .5rem 0; }
dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; } thead th { overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem; }
figure { margin: 0; } figure svg { width: 100%; height: auto; } figcaption { font-weight: 600; }
.filters { position: sticky; top: 0; z-index: 1; display: flex; flex-wrap: wrap; gap: .5rem 1rem; align-items: end;
  padding: .6rem 0; background: var(--paper); border-bottom: 1px solid var(--line); }
.filters label { display: grid; font-size: .8rem; color: var(--soft); }
select, input { font: inherit; color: var(--ink); background: var(--shade); border: 1px solid var(--line);
  border-radius: .3rem; padding: .2rem .4rem; max-width: 14rem; }
article { border: 1px solid var(--line); border-radius: .5rem; margin: .8rem 0; padding: .8rem 1rem; }
article[hidden] { display: none; }
.question { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0 0 .4rem; }
.models { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 1rem; }
.models > div { min-width: 0; } .name { font-weight: 600; overflow-wrap: anywhere; }
.right { color: var(--right); } .wrong { color: var(--wrong); }
.verdict { font-weight: 600; } summary { cursor: pointer; } summary:focus-visible, select:focus-visible,
input:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
.turn { margin: .4rem 0; border-left: 3px solid var(--line); padding-left: .6rem; }
.turn.assistant { border-color: var(--link); } .role { font-size: .75rem; color: var(--soft); }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.45 ui-monospace, monospace;
  unicode-bidi: isolate; max-height: 32rem; overflow-y: auto; }
"""

SCRIPT = """
"use strict";
const cards = Array.from(document.querySelectorAll("article"));
const pick = name => document.getElementById("filter-" + name);
const value = name => { const field = pick(name); return field ? field.value : ""; };
function shows(card) {
  const model = Number(value("model") || 0);
  const right = card.dataset.right.split(" ")[model];
  const error = card.dataset.error.split(" ")[model];
  const words = value("words").trim().toLowerCase();
  return (!value("verdict") || value("verdict") === right)
    && (!value("error") || value("error") === error)
    && (!value("stratum") || value("stratum") === card.dataset.stratum)
    && (!value("change") || value("change") === card.dataset.change)
    && (!words || card.textContent.toLowerCase().includes(words));
}
function update() {
  let count = 0;
  for (const card of cards) { card.hidden = !shows(card); count += card.hidden ? 0 : 1; }
  document.getElementById("count").textContent = count + " of " + cards.length + " tasks";
}
for (const field of document.querySelectorAll(".filters select, .filters input")) {
  field.addEventListener("input", update);
}
update();
"""

TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src '{{ hash }}'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ report.title }}</title>
<style>{{ style | safe }}</style>
</head>
<body>
<h1>{{ report.title }}</h1>
<dl>{% for key, value in settings %}<dt>{{ key }}</dt><dd>{{ value }}</dd>{% endfor %}</dl>

<h2>Measures</h2>
<div class="wide"><table>
<thead><tr><th scope="col">measure</th>{% for name in names %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in measures %}<tr><th scope="row">{{ row[0] }}</th>
{% for cell in row[1:] %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody>
</table></div>
<p class="soft">Brackets hold 95 % intervals.</p>

{% for title, sentences in sections if sentences %}
<h2>{{ title }}</h2>
<ul>{% for sentence in sentences %}<li>{{ sentence }}</li>{% endfor %}</ul>
{% endfor %}

<h2>Pictures</h2>
<div class="charts">
{% for title, svg in charts.items() %}<figure><figcaption>{{ title }}</figcaption>{{ svg | safe }}</figure>{% endfor %}
</div>

<h2>Dialogues</h2>
{% if left_out %}
<p class="soft">Tasks that a model gets wrong come first; {{ left_out }} more are in trajectories.jsonl.</p>
{% endif %}
<div class="filters">
{% if names | length > 1 %}
<label>model <select id="filter-model">
{% for name in names %}<option value="{{ loop.index0 }}">{{ name }}</option>{% endfor %}</select></label>
<label>first → last model <select id="filter-change"><option value="">any</option>
{% for change in changes %}<option>{{ change }}</option>{% endfor %}</select></label>
{% endif %}
<label>answer <select id="filter-verdict"><option value="">any</option>
<option>right</option><option>wrong</option></select></label>
<label>error <select id="filter-error"><option value="">any</option>
{% for kind in kinds %}<option>{{ kind }}</option>{% endfor %}</select></label>
<label>difficulty <select id="filter-stratum"><option value="">any</option>
{% for name in strata %}<option>{{ name }}</option>{% endfor %}</select></label>
<label>words <input id="filter-words" type="search"></label>
<span id="count" role="status" class="soft"></span>
</div>
{% for card in cards %}
<article data-right="{{ card.right }}" data-error="{{ card.error }}" data-stratum="{{ card.stratum }}"
 data-change="{{ card.change }}">
<p class="question">{{ card.question }}</p>
<p class="soft">{{ card.task_id }} · {{ card.stratum }} · right answer {{ card.answer }}</p>
<div class="models">
{% for model in card.models %}<div><p class="name">{{ model.name }}</p>
{% for attempt in model.attempts %}
<details><summary><span class="verdict {{ attempt.verdict }}">{{ attempt.verdict }}</span>
 {{ attempt.said }}</summary>
{% if attempt.why %}<p class="wrong">{{ attempt.why }}</p>{% endif %}
<p class="soft">{{ attempt.facts }}</p>
{% for turn in attempt.turns %}<div class="turn {{ turn.kind }}"><span class="role">{{ turn.role }}</span>
<pre>{{ turn.text }}</pre></div>{% endfor %}
</details>{% endfor %}</div>{% endfor %}
</div>
</article>
{% endfor %}
<script>{{ script | safe }}</script>
</body>
</html>
"""
