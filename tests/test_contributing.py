"""What CONTRIBUTING.md says to write works as it stands there: a policy and a drafter, each one file, in every verb."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from draftgauge.api.bench import bench
from draftgauge.api.generate import generate
from draftgauge.api.profile import profile
from draftgauge.api.replay import replay
from draftgauge.drafters import base as kinds
from draftgauge.drafters.base import Drafting, drafter_kinds
from draftgauge.pair.loading import load_pair
from draftgauge.policies.base import import_others
from draftgauge.policies.spec import POLICIES
from draftgauge.traces.run import Manifest
from tiny import save_tiny

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"
BLOCK = re.compile(r"```python\n# (?P<path>src/draftgauge/\S+\.py)\n(?P<code>.*?)```", re.DOTALL)
POLICY, DRAFTER = "every-other", "last-token"


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The files of the page as an installed package of its own; what they register is forgotten afterwards."""
    folder = tmp_path_factory.mktemp("added")
    points = re.search(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert points is not None
    named = tomllib.loads(points[1])["project"]["entry-points"]
    named["draftgauge.drafters"]["broken"] = "your_package.missing"
    blocks = {Path(block["path"]).name: block for block in BLOCK.finditer(PAGE.read_text(encoding="utf-8"))}
    for file in (folder / "your_package" / name for name in ("__init__.py", *blocks)):
        file.parent.mkdir(exist_ok=True)
        file.write_text("" if file.name not in blocks else blocks[file.name]["code"], encoding="utf-8")
    information = folder / "your_package-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: your-package\nVersion: 1\n")
    lines = [f"[{group}]\n" + "".join(f"{n} = {m}\n" for n, m in of.items()) for group, of in named.items()]
    (information / "entry_points.txt").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        drafter_kinds()  # the package's own are registered before the copy is taken
        patch.setattr(kinds, "_KINDS", dict(kinds._KINDS))
        patch.syspath_prepend(str(folder))
        import_others("draftgauge.policies")
        with pytest.warns(
            UserWarning, match="your_package.missing of the entry points draftgauge.drafters is left out"
        ):
            import_others("draftgauge.drafters")
        yield [block["path"] for block in blocks.values()]
        del POLICIES[POLICY]


def test_the_page_adds_one_file_each(added: list[str]) -> None:
    assert added == ["src/draftgauge/policies/every_other.py", "src/draftgauge/drafters/last_token.py"]
    assert POLICY in POLICIES
    assert DRAFTER in drafter_kinds()


def test_its_drafts_end_with_the_text(added: list[str]) -> None:
    drafter = drafter_kinds()[DRAFTER].load().drafter(None, None, Drafting(frozenset({7})))
    for last, drafted in ((5, [5, 5]), (7, [])):
        drafter.prefill([1, last])
        assert drafter.propose(2, None).tokens == drafted


def test_both_work_in_every_verb(added: list[str], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": f"prompt {n}", "task": "a"}) for n in range(2)))
    target = save_tiny(tmp_path / "target")
    pair = load_pair(target, drafter=DRAFTER, device="cpu")
    plain = generate(pair, "hello", "plain", max_new_tokens=12)
    how = generate(pair, "hello", f"{POLICY}:tokens=3", max_new_tokens=12)
    assert how.text == plain.text
    assert [step.drafted for step in how.steps[:4]] == [3, 0, 3, 0]
    common: dict[str, Any] = {"target": target, "prompts": prompts, "max_new_tokens": 8, "device": "cpu"}
    run = tmp_path / "run"
    profile(**common, drafter=DRAFTER, out=run, gamma_max=2, cost_seconds=0)
    assert Manifest.load(run).drafter == DRAFTER
    replayed = {row["policy"]: row for row in replay(run, POLICY) if row["task"] == "all"}
    rows = bench(run, POLICY, rounds=1, baselines=False, device="cpu")
    live = {row["policy"]: row for row in rows if row["task"] == "all"}
    assert live[POLICY]["mismatches"] == 0
    assert live[POLICY]["tokens_per_step"] == replayed[POLICY]["tokens_per_step"]


def test_the_page_names_what_is_there() -> None:
    root = PAGE.parent
    text = PAGE.read_text(encoding="utf-8")
    for path in re.findall(r"`((?:src|tests)/[\w/]+\.py)`", text):
        assert (root / path).exists(), path
    for name in re.findall(r"`(drafters/[\w/]+\.py)`", text):
        assert (root / "src" / "draftgauge" / name).exists(), name
