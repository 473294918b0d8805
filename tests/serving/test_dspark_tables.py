"""SGLang's tables of DSpark steps: read as costs, and made of them."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from command_line import refusal, succeeds
from draftgauge.traces.engine_costs import EngineCosts, load_engine_costs

TABLE = {
    "bias_seconds": 0.01,
    "bs_probes": [1, 4],
    "alpha_seconds": [0.0, 0.003],
    "m_probes": [1, 8, 16],
    "theta_seconds": [0.0, 0.0014, 0.006],
}
RATES = {"sample_batch_tokens": [1, 4, 10], "sample_steps_per_sec": [100.0, 80.0, 40.0], "max_batch_tokens": 16}


def costs_of(path: Path, table: object, served: float) -> EngineCosts:
    path.write_text(json.dumps(table))
    out, shape = path.with_name("costs.json"), ("--batches=1,2,4", "--lengths=1,3")
    succeeds("costs", "-e", "sglang", "--dspark-table", path, "--served", served, *shape, "--out", out)
    made = load_engine_costs(out, "sglang")
    assert made is not None
    return made


def test_a_table_and_a_served_step_give_plain_verification_and_drafting(tmp_path: Path) -> None:
    costs = costs_of(tmp_path / "table.json", TABLE, served=0.008)
    assert costs.draft == ((0.0, 0.002, 0.002, 0.002),) * 3  # a block at once
    assert costs.plain == pytest.approx((0.008, 0.008 + 0.001 + 0.0002, 0.008 + 0.003 + 0.0006))
    # two requests and six tokens stand between probes
    assert costs.verify[1][2] + costs.draft[1][2] == pytest.approx(0.01 + 0.001 + 0.001)
    older = costs_of(tmp_path / "older.json", RATES, served=0.008)
    steps = {(b, k): older.verify[i][k] + older.draft[i][1] for (i, b), k in product(enumerate((1, 2, 4)), (0, 1, 3))}
    assert steps == pytest.approx(
        {(1, 0): 0.01, (1, 1): 0.01, (1, 3): 0.0125}
        | {(2, 0): 0.01, (2, 1): 0.0125, (2, 3): 0.0125}
        | {(4, 0): 0.0125, (4, 1): 0.0125, (4, 3): 0.025}
    )  # the sample below


def test_costs_written_as_a_table_give_themselves_back(tmp_path: Path) -> None:
    costs, out = costs_of(tmp_path / "table.json", TABLE, served=0.008), tmp_path / "written.json"
    said = succeeds("costs", "-e", "sglang", "--from-costs", tmp_path / "costs.json", "--out", out).stdout
    assert "off by 0.0% at most" in said
    again = costs_of(out, json.loads(out.read_text()), served=0.008)
    assert again.plain == pytest.approx(costs.plain)
    assert [s for row in again.verify for s in row] == pytest.approx([s for row in costs.verify for s in row])


@pytest.mark.parametrize(
    ("table", "served", "message"),
    [
        (TABLE, 0.02, "served 0.02 s"),
        (TABLE | {"m_probes": [1, 1, 2]}, 0.008, "probes must increase"),
        (TABLE | {"theta_seconds": [0.0]}, 0.008, "is no table of DSpark steps"),
        (TABLE | {"more": 1}, 0.008, "unknown key 'more'"),
        (RATES | {"sample_steps_per_sec": [0.0, 1.0, 1.0]}, 0.008, "is no table of DSpark steps"),
        ([], 0.008, "is no table of DSpark steps"),
        (TABLE, 0.008, "ends at 4 requests and 16 tokens"),  # beyond it steps would look free
    ],
)
def test_other_files_are_refused(tmp_path: Path, table: object, served: float, message: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table))
    asked = ("costs", "-e", "sglang", "--dspark-table", path, "--out")
    shape = () if message.startswith("ends at") else ("--batches=1,4", "--lengths=3")
    assert message in refusal(*asked, tmp_path / "costs.json", "--served", served, *shape)
    assert "--served" in refusal(*asked, tmp_path / "costs.json")
    assert "a new --out" in refusal(*asked, path, "--served", "0.008")  # which would replace the table
    assert "--engine sglang" in refusal(*asked, tmp_path / "costs.json", "--served", 1, "--cases", tmp_path / "x.json")
    assert "--engine sglang" in refusal("costs", "--dspark-table", path, "--served", 1, "--out", tmp_path / "c.json")
