"""Makes docs/results/context-law-ENGINE.json: how far a law fitted at the outer contexts is off between them.

python benchmarks/context_law.py TARGET TOKENIZER [CONTEXT...]
"""

import sys

import numpy as np
from common import RESULTS, save

from draftgauge.core.parts import LoadSpec, PairSpec
from draftgauge.core.progress import silent
from draftgauge.meter import MeterPlan
from draftgauge.models.tokenizer import token_ids
from draftgauge.pair.costs import bundled_text, measured
from draftgauge.pair.loading import load_pair
from draftgauge.traces.context_law import fit_law

target, tokenizer, *contexts = sys.argv[1:]
pair = load_pair(PairSpec(target=target, drafter="lookup", loading=LoadSpec(tokenizer=tokenizer)))
text, asked = token_ids(pair.tokenizer, bundled_text(), special=False), contexts or [256, 1024, 4096, 8000]
costs = measured(pair, MeterPlan(text, tuple(map(int, asked)), 3, seconds=200), 0, silent)
assert len(costs.contexts) > 2, "there was no time for a context between: name shorter ones"
x, y = np.array(costs.contexts), np.vstack([costs.plain, np.transpose(costs.verify)])  # [passes, contexts]
off = (fit_law(x[[0, -1]], y[:, [0, -1]]).seconds(x) / y - 1).tolist()
rows = [{"passes": k, "context": c, "off": off[k][at]} for k in range(5) for at, c in enumerate(costs.contexts)]
save(RESULTS, f"context-law-{pair.target.spec.engine}.json", rows)
