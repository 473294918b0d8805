"""The pictures of the README: bars as published, and drafts drawn from what the pair decodes."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median

from draftgauge.core.provenance import read_measurement

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
ELSEWHERE = re.compile(r'(?:href|src)="(?!#)|url\((?!#)|@import')
"""What would be fetched when a picture is looked at."""


def test_the_bars_are_those_of_the_published_rows() -> None:
    from pictures import ARMS, GAINS, gains, matching, ratios_of

    rows = [dict(row) for row in read_measurement(ROOT / "docs" / "results" / "speckv.json").rows]
    live = list(matching(rows, {"table": "live", "task": "all"}))
    assert {row["compression"] for row in live} == {"none", "int8", "nf4"}
    assert all(len(ratios_of(live, compression, arm)) >= 3 for compression in ("none", "int8", "nf4") for arm in ARMS)
    labels = [
        f"{median(ratios_of(live, compression, arm)):.2f}\u00d7"
        for arm in ARMS
        for compression in dict.fromkeys(row["compression"] for row in live)
    ]
    for picture in (gains(rows), (IMAGES / GAINS).read_text(encoding="utf-8")):
        assert re.findall(r">(\d\.\d\d\u00d7)<", picture) == labels


def test_drafts_are_drawn_in_the_colours_of_how_they_came() -> None:
    from pictures import PROMPTS, drafts

    picture = drafts(PROMPTS[:1])
    assert "lantern." in re.sub(r"<[^>]+>", "", picture).replace("&#160;", " ").split("--show-drafts")[2]
    colours = set(re.findall(r"\.drafts-r\d+ \{ fill: (#\w+)", picture))
    assert len(colours) >= 4


def test_the_readme_shows_both_and_neither_needs_the_network() -> None:
    from pictures import DRAFTS, GAINS

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in (GAINS, DRAFTS):
        assert f"(docs/images/{name})" in readme
        assert not ELSEWHERE.search((IMAGES / name).read_text(encoding="utf-8"))
