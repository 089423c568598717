"""Which method of credit learns from how many turns: success and return against the turns that were played.

    python benchmarks/learning.py --search          # learning rates, on seeds of their own
    python benchmarks/learning.py                   # the sweep; kill it and start it again as you like
    python benchmarks/learning.py --report          # table and figure of what is there

Models and results in ``benchmarks/results/learning`` count as done; ``--afresh`` makes them again.

Every cell (setting × method × reward × discount × seed) is one run of the trainer and leaves one JSON file in the
output folder; the models they begin with are made first and kept. All turns of all episodes count, those of failed
ones too. Success is that of the training episodes themselves: new problems, sampled at temperature 1, graded by their
final answer whatever the reward pays.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import tyro
from learning_cells import SETTINGS, cells, search_cells
from learning_report import best_rates, figure, table
from learning_runs import load_results, prepare_models, publish, restore, run_all

__all__ = ["main", "shown"]

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "benchmarks" / "results" / "learning"
OUTPUT = ROOT / ".cache" / "benchmarks" / "learning"
PAGE, PICTURE = ROOT / "docs" / "learning.md", ROOT / "docs" / "learning.png"
BEGIN, END = "<!-- results: python benchmarks/learning.py --report -->", "<!-- end -->"  # of them, in the page


def main(
    output: Annotated[Path, tyro.conf.arg(help="Folder of models, results and report.")] = OUTPUT,
    cells_: Annotated[tuple[str, ...], tyro.conf.arg(name="cells", help="Which, by name: 'long-*-sparse-*'.")] = ("*",),
    seeds: Annotated[int, tyro.conf.arg(help="Runs of each kind.")] = 5,
    jobs: Annotated[int, tyro.conf.arg(help="Runs at the same time, one core each.")] = 2,
    search: Annotated[bool, tyro.conf.arg(help="Look for learning rates instead.")] = False,
    report: Annotated[bool, tyro.conf.arg(help="Only write table and figure.")] = False,
    afresh: Annotated[bool, tyro.conf.arg(help="Leave what is published out.")] = False,
    publish_: Annotated[
        bool, tyro.conf.arg(name="publish", help="Write models and results into the repository, and their page.")
    ] = False,
) -> int:
    """Run what is missing, then report."""
    output = output.resolve()
    failed: list[str] = []
    if not afresh:
        restore(PUBLISHED, output)
    if not report:
        rates = best_rates(load_results(output))
        chosen = search_cells(seeds, cells_) if search else cells(seeds, cells_, rates)
        prepare_models(sorted({SETTINGS[cell.setting].model for cell in chosen}), output)
        failed = run_all(chosen, output, jobs)
    results = load_results(output)
    (output / "rates.json").write_text(json.dumps(best_rates(results), indent=1) + "\n", encoding="utf-8")
    text = table(results, seeds)
    (output / "report.md").write_text(text, encoding="utf-8")
    figure(results, output / "report.png")
    print(text)
    if publish_:
        publish(output, PUBLISHED)
        head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n{shown(PICTURE, seeds)}{END}{rest.partition(END)[2]}", encoding="utf-8")
    for line in failed:
        print(line, file=sys.stderr)
    return 1 if failed else 0


def shown(picture: Path | None = None, seeds: int = 5) -> str:
    """Return the report of what is published, as it stands in the page.

    Args:
        picture: Where to draw it, too.
        seeds: How many runs there should be of each kind.
    """
    with tempfile.TemporaryDirectory() as folder:
        restore(PUBLISHED, Path(folder))
        results = load_results(Path(folder))
    if picture is not None:
        figure(results, picture)
    return table(results, seeds)


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main))
