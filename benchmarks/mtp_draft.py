"""Makes docs/results/mtp-draft.json: what a draft of an MTP head takes beside one of the design `hidden`.

Both draft for a random target of the same widths, on one thread, by turns: from two newly committed tokens on, three
tokens. Figures are medians of processor seconds, the operations of one draft and the weights that draft.

    python benchmarks/mtp_draft.py [--width 576] [--text 256] [--rounds 40]
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, console
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from draftgauge.core.provenance import write_measurement
from draftgauge.drafters.base import Drafting
from draftgauge.drafters.mtp.live import drafter_of
from draftgauge.drafters.reuse.building import count_parameters, new_net
from draftgauge.drafters.reuse.config import reuse_config
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import wrap
from draftgauge.models.taps import attach_taps

NAME = "mtp-draft.json"
DESIGNS = ("hidden", "mtp")
LAYERS, COMMITTED, DRAFTED, MOST = 6, 2, 3, 1.25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=576)
    parser.add_argument("--vocabulary", type=int, default=49152)
    parser.add_argument("--text", type=int, default=256, help="tokens before the first draft")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.width,
        intermediate_size=args.width * 8 // 3,
        num_hidden_layers=LAYERS,
        num_attention_heads=args.width // 64,
        num_key_value_heads=args.width // 192 or 1,
    )
    target = wrap(LlamaForCausalLM(config).eval())
    drafts = {design: prepared(target, design, args) for design in DESIGNS}
    seconds: dict[str, list[float]] = {design: [] for design in DESIGNS}
    for _ in range(args.rounds):
        for design, (draft, _) in drafts.items():
            seconds[design].append(draft())
    rows: list[dict[str, Any]] = []
    for design, (draft, parameters) in drafts.items():
        with FlopCounterMode(display=False) as counter:
            draft()
        row = {"design": design, "width": args.width, "text": args.text, "drafted": DRAFTED, "parameters": parameters}
        row |= {"seconds": statistics.median(seconds[design]), "operations": counter.get_total_flops()}
        rows.append(row)
    hidden, mtp = rows
    rows.append(
        {"over": "mtp / hidden", "most": MOST} | {key: mtp[key] / hidden[key] for key in ("seconds", "operations")}
    )
    args.out.mkdir(parents=True, exist_ok=True)
    write_measurement(args.out / NAME, shlex.join(["python", "benchmarks/mtp_draft.py", *sys.argv[1:]]), rows)
    for row in rows:
        console.print(row, highlight=False)


def prepared(target: CachedModel, design: str, args: argparse.Namespace) -> tuple[Callable[[], float], int]:
    """A function that drafts once and tells the processor seconds; and how many parameters draft, the head among them.

    Every call commits two tokens first, as a step with one accepted token does.
    """
    assert target.module is not None
    config = reuse_config(target.module.config, design, target_fingerprint="random")
    net = new_net(config, target.module, 0).eval().requires_grad_(False)
    text = torch.randint(0, args.vocabulary, (args.text + COMMITTED * (args.rounds + 2),)).tolist()
    taps = attach_taps(target, config.tap_plan)
    target.forward(torch.tensor(text))
    store = target.hidden  # type: ignore[attr-defined]
    drafter = drafter_of(net, target, taps, Drafting(frozenset()))
    drafter.prefill(text[: args.text])
    done = args.text

    def draft() -> float:
        nonlocal done
        target.hidden = store  # type: ignore[attr-defined]
        drafter.commit(COMMITTED - 1, text[done : done + COMMITTED])
        done += COMMITTED
        begun = time.process_time()
        proposed = drafter.propose(DRAFTED, None)
        taken = time.process_time() - begun
        assert len(proposed.tokens) == DRAFTED
        return taken

    return draft, count_parameters(config, target.module)


if __name__ == "__main__":
    main()
