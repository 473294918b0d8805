"""The pictures of the README: what speculation gains, from published rows, and drafts as they stand or fall.

python benchmarks/pictures.py            # docs/images/gains.svg, from docs/results/speckv.json
python benchmarks/pictures.py --drafts   # docs/images/drafts.svg too: decodes two prompts with the bundled pair
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib
from common import console
from matplotlib.figure import Figure
from readme_tables import FIXED, RIVAL, STOPPING, matching
from rich.console import Console
from rich.text import Text

from draftgauge.api.generate import generate
from draftgauge.api.pair import Pair, load_pair
from draftgauge.api.requests import PairSpec
from draftgauge.cli.generate import LEGEND, STYLES
from draftgauge.core.files import atomic_write_text
from draftgauge.core.provenance import read_measurement
from draftgauge.policies.two_source import TWO_SOURCE
from draftgauge.reporting.style import LIGHT, compression_title
from draftgauge.reporting.svg import RC

PROMPTS = (
    "Tell me a short story about a lantern.",
    "My meeting is in room 12, and the lunch is in room 7. In which room is the lunch?",
)
GAINS, DRAFTS = "gains.svg", "drafts.svg"
ARMS = {
    FIXED: ("best fixed length", "muted"),
    STOPPING: (STOPPING, "sky"),
    RIVAL: ("best other rule, tuned", "ochre"),
    TWO_SOURCE: (TWO_SOURCE, "blue"),
}
UNSTAMPED = {"Date": None, "Creator": None, "Format": None, "Type": None}


def main() -> int:
    """Draw what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("docs/results"), help="folder of speckv.json")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="folder for the pictures")
    parser.add_argument("--drafts", action="store_true", help="decode the prompts too")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    pictures = {GAINS: gains(read_measurement(args.results / "speckv.json").rows)}
    if args.drafts:
        pictures[DRAFTS] = drafts(PROMPTS)
    for name, picture in pictures.items():
        atomic_write_text(args.out / name, picture)
        console.print(f"wrote {args.out / name}", highlight=False)
    return 0


def gains(rows: Sequence[Mapping[str, Any]]) -> str:
    """Bars of live speed over plain decoding on all sealed prompts: the median of the sittings, and their range."""
    live = list(matching([dict(row) for row in rows], {"table": "live", "task": "all"}))
    compressions = list(dict.fromkeys(row["compression"] for row in live))
    width = 0.8 / len(ARMS)
    with matplotlib.rc_context(RC | {"svg.hashsalt": "draftgauge", "axes.grid.axis": "y"}):
        figure = Figure(figsize=(7.2, 2.9), layout="constrained", facecolor=LIGHT["card"])
        axes: Any = figure.add_subplot()
        for number, (arm, (name, colour)) in enumerate(ARMS.items()):
            for place, compression in enumerate(compressions):
                ratios = ratios_of(live, compression, arm)
                middle = median(ratios)
                at = place + (number - (len(ARMS) - 1) / 2) * width
                spread = [[middle - min(ratios)], [max(ratios) - middle]]
                axes.bar(at, middle, 0.92 * width, color=LIGHT[colour], label="" if place else name)
                axes.errorbar(at, middle, spread, color=LIGHT["ink"], linewidth=1, capsize=3)
                axes.text(at, 0.06, f"{middle:.2f}\u00d7", ha="center", color="white", fontsize=9)
        axes.axhline(1, color=LIGHT["ink"], linewidth=1)
        axes.set_xticks(range(len(compressions)), [compression_title(each) for each in compressions])
        axes.set_ylabel("tokens per second over plain decoding")
        axes.legend(frameon=False, ncols=len(ARMS), loc="lower center", bbox_to_anchor=(0.5, 1.0))
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata=UNSTAMPED)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def ratios_of(live: Sequence[Mapping[str, Any]], compression: str, arm: str) -> list[float]:
    """Speed over plain decoding, sitting by sitting; of the length and the other rule that are best on training prompts
    for those two arms.
    """
    return [row["ratio_to_plain"] for row in live if row["compression"] == compression and _arm(row) == arm]


def _arm(row: Mapping[str, Any]) -> str:
    if row["policy"] == row["over"]:
        return FIXED
    return RIVAL if row["tuned"] and row["policy"] not in ARMS else row["policy"]


def drafts(prompts: Sequence[str]) -> str:
    """Answers of the bundled pair as ``draftgauge generate --show-drafts`` streams them."""
    screen = Console(record=True, width=100, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    pair = load_pair(PairSpec())
    for prompt in prompts:
        screen.print(Text(f'$ draftgauge generate "{prompt}" --policy {TWO_SOURCE} --show-drafts', style="dim"))
        screen.print(_answer(pair, prompt), end="\n\n")
    screen.print(Text("   ").join(_piece(meaning, name) for name, meaning in LEGEND.items()))
    svg = screen.export_svg(title="draftgauge generate --show-drafts", unique_id="drafts")
    return re.sub(r"@font-face \{.*?\}\n?", "", svg, flags=re.DOTALL)  # fonts from elsewhere, which nothing here needs


def _answer(pair: Pair, prompt: str) -> Text:
    pieces: list[Text] = []
    generate(pair, prompt, policy=TWO_SOURCE, on_text=lambda text, origin: pieces.append(_piece(text, origin)))
    return Text.assemble(*pieces)


def _piece(text: str, origin: str) -> Text:
    return Text(text, style=STYLES[origin])


if __name__ == "__main__":
    sys.exit(main())
