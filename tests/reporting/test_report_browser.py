"""The report in a headless Chromium: it fits a telephone, and nothing complains."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from draftgauge.api.advise import advise
from draftgauge.api.report import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PROBE = """<!DOCTYPE html><title>probe</title>
<iframe style="width:WIDTHpx;height:900px;border:0" srcdoc="PAGE"></iframe>
<pre id="found"></pre><script>
document.querySelector("iframe").onload = event => {
  const page = event.target.contentDocument;
  page.querySelectorAll("details").forEach(each => each.open = true);
  document.getElementById("found").textContent = JSON.stringify({
    width: page.documentElement.scrollWidth,
    figures: [...page.querySelectorAll(".figure")].map(each => each.textContent),
    said: [...page.querySelectorAll(".card > p")].map(each => each.textContent),
  });
};</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [390, 1280])
def test_the_report_fits_and_shows_the_verdict_of_the_rows(runs: list[Path], tmp_path: Path, width: int) -> None:
    assert CHROMIUM is not None
    page = html.escape(write_report(runs[0], tmp_path / "report.html").read_text())
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE.replace("WIDTH", str(width)).replace("PAGE", page))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    shown = subprocess.run(
        [*command, f"--user-data-dir={tmp_path / 'user'}", probe.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    (found,) = re.findall(r'<pre id="found">(.*?)</pre>', shown.stdout, re.DOTALL)
    seen = json.loads(html.unescape(found))
    assert seen["width"] <= width
    assert "CONSOLE" not in shown.stderr
    (advised,) = [row for row in advise(runs[0]) if row["recommended"]]
    assert any(advised["verdict"] in text for text in seen["said"])
    assert seen["figures"][0].startswith(f"{advised['ratio_to_plain']:.2f}")
