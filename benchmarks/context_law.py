"""Makes docs/results/context-law-ENGINE.json: how far a law fitted at the outer contexts is off between them."""

import argparse

import numpy as np
from common import RESULTS, save, show_progress

from draftgauge.core.parts import LoadSpec, PairSpec
from draftgauge.meter import MeterPlan
from draftgauge.models.tokenizer import token_ids
from draftgauge.pair.costs import bundled_text, measured
from draftgauge.pair.loading import load_pair
from draftgauge.traces.context_law import fit_law


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("target", "tokenizer"):
        parser.add_argument(name)
    parser.add_argument("contexts", type=int, nargs="*", default=[256, 1024, 4096, 8000])
    given = parser.parse_args()
    pair = load_pair(PairSpec(target=given.target, drafter="lookup", loading=LoadSpec(tokenizer=given.tokenizer)))
    text = token_ids(pair.tokenizer, bundled_text(), special=False)
    costs = measured(pair, MeterPlan(text, tuple(given.contexts), 3, seconds=200), 0, show_progress)
    if len(costs.contexts) < 3:
        raise SystemExit("there was no time for a context between: name shorter ones")
    x, y = np.array(costs.contexts), np.vstack([costs.plain, np.transpose(costs.verify)])  # [passes, contexts]
    off = (fit_law(x[[0, -1]], y[:, [0, -1]]).seconds(x) / y - 1).tolist()
    rows = [{"passes": k, "context": c, "off": off[k][at]} for k in range(5) for at, c in enumerate(costs.contexts)]
    save(RESULTS, f"context-law-{pair.target.spec.engine}.json", rows)


if __name__ == "__main__":
    main()
