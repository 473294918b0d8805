"""The families campaign: what the product does with a tiny random model of every type of transformers.

``python tests/families.py`` tries every type, prints the counts and fails where a type ends in anything but OK or a
refusal in words. ``--write`` keeps the outcomes in ``docs/results/families.json`` and the table in ``docs/engines.md``.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import os
import re
import sys
import tempfile
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import DynamicCache, PreTrainedModel
from transformers.utils import logging

from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.drafters.dense import draft_densely, draft_position_by_position
from draftgauge.drafters.formats.building import build_net, read_layout
from draftgauge.drafters.formats.files import read_config
from draftgauge.drafters.formats.live import CheckpointDrafter
from draftgauge.models.base import CachedModel, layer_count
from draftgauge.models.loading import load_model, wrap
from draftgauge.models.spec import cache_argument
from draftgauge.models.taps import TapPlan, attach_taps, ordered, tap_plan
from draftgauge.policies.fixed import FixedLength
from tiny import noisy, tiny_model, tokens
from tiny_families import CAUSAL, FOR_FIXTURES, ROBERTAS, VISION, tiny_family

ROOT = Path(__file__).parents[1]
OUTCOMES = ROOT / "docs" / "results" / "families.json"
PAGE = ROOT / "docs" / "engines.md"
BEGIN, END = "<!-- families -->\n", "<!-- end of families -->\n"
# transformers' generate gives another text than its forward without a cache; RoBERTa's by counting positions from 0.
GENERATES_OTHERWISE = ROBERTAS.split()
WITHOUT_EMBEDDINGS = ("mamba2",)  # transformers' hidden states begin behind its first layer
TWO_PATHS = ("nemotron_h", "zamba2")  # transformers bounds their time steps in passes of several tokens only
FIXTURES = ("eagle3-norms", "dflash-flat", "dspark-deepspec")
MOST_USED = """qwen3 qwen2 llama gemma3_text gemma4_text mistral gpt_oss qwen3_moe qwen3_5 qwen3_next deepseek_v3
    glm4_moe qwen2_5_vl qwen3_vl"""
SETTINGS = DecodingSettings(8)
PROMPT = tokens(12, seed=3, vocabulary=48).tolist()
Row = dict[str, Any]


def outcome(kind: str, fixtures: Sequence[str] = FIXTURES) -> Row:
    """What a type does: ``ok``, ``refused`` in words, ``not built`` (by transformers itself), or what is wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = tiny_family(kind)
        except Exception as error:
            return {"type": kind, "outcome": "not built", "words": _short(error)}
        row: Row = {"type": kind, "group": group_of(kind, model)}
        try:
            target = loaded(model)
        except ModelError as error:
            return row | {"outcome": "refused", "words": _reason(error)}
        except Exception as error:
            return row | {"outcome": "traceback", "words": _short(error)}
        try:
            expected = generated(model)
        except Exception as error:
            return row | {"outcome": "not built", "words": _short(error)}
        row["engine"], row["outcome"] = target.spec.engine, _words(lambda: decoding(model, target, expected))
        row["dense"] = "together" if target.spec.branches > 1 else "one by one"
        row |= {
            "hidden": _words(lambda: tapped(model, target, False)),
            "keys": _words(lambda: tapped(model, target, True)),
        }
        row["drafters"] = _words(lambda: imported(kind, fixtures)) if row["hidden"] == "yes" else "no"
        return row


def generated(model: PreTrainedModel) -> list[int]:
    """The greedy text by transformers itself."""
    text = torch.tensor([PROMPT])
    if model.config.model_type in GENERATES_OTHERWISE:
        with torch.no_grad():
            for _ in range(8):
                text = torch.cat((text, model(text, use_cache=False).logits[:, -1:].argmax(-1)), 1)
        return text[0, len(PROMPT) :].tolist()
    model.generation_config.forced_eos_token_id = None
    longer = model.generate(text, do_sample=False, max_new_tokens=8, pad_token_id=0, eos_token_id=None)
    return longer[0, len(PROMPT) :].tolist()


def loaded(model: PreTrainedModel) -> CachedModel:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_model(folder, device="cpu", compression="fp32")


def decoding(model: PreTrainedModel, target: CachedModel, expected: list[int]) -> str:
    if plain_decode(target, PROMPT, SETTINGS).tokens != expected:
        return "plain differs"
    near = wrap(noisy(copy.deepcopy(model), 0.05))
    far = wrap(tiny_model("llama", seed=7, num_hidden_layers=1))
    for draft in (near, far):
        if speculative_decode(target, LanguageModelDrafter(draft), FixedLength(4), PROMPT, SETTINGS).tokens != expected:
            return "speculative differs"
    fast = draft_densely(near, PROMPT, expected, 4)
    slow = draft_position_by_position(LanguageModelDrafter(near), PROMPT, expected, 4)
    same = np.array_equal(fast.tokens, slow.tokens) and np.allclose(fast.shown, slow.shown, atol=1e-4)
    return "ok" if same else "trace differs"


def tapped(model: PreTrainedModel, target: CachedModel, keys: bool) -> str:
    """Whether taps of the loaded model are what transformers shows of the built one, or why there are none."""
    config, text = model.config.get_text_config(), torch.tensor(PROMPT)
    last = layer_count(config) - 1
    try:
        plan = (
            tap_plan(config, False, True) if keys else tap_plan(config, True, False, [0, max(0, last - 1)][: last or 1])
        )
        taps = attach_taps(target, plan)
        target.forward(text[:7])
        target.forward(text[3:])  # a draft that is rejected
        target.truncate(7)
        target.forward(text[7:])
    except ModelError as error:
        return _reason(error)
    cache = DynamicCache(config=config)
    with torch.no_grad():
        shown = model(text[None], use_cache=True, output_hidden_states=True, **cache_argument(model, cache))
    if not keys:
        states = shown.hidden_states if shown.get("hidden_states") is not None else shown.decoder_hidden_states
        first = 0 if config.model_type in WITHOUT_EMBEDDINGS else 1
        absent = getattr(config, "cross_attention_layers", ())
        places = [first + layer - sum(other < layer for other in absent) for layer in plan.hidden_layers]
        wanted = torch.stack([states[place][0] for place in places], 1)
        return "yes" if _close(taps.hidden(0, len(text)), wanted) else "differ"
    pairs = zip(taps.keys_values(0, len(text)), ("keys", "values"), strict=True)
    layers = [cache.layers[layer] for layer in plan.kv_layers]
    right = True
    for ours, name in pairs:
        theirs = torch.stack([getattr(one, name)[0] for one in layers])
        right &= _close(ours, ordered(model, theirs) if name == "keys" else theirs)
    return "yes" if right else "differ"


def imported(kind: str, fixtures: Sequence[str]) -> str:
    """EAGLE-3, DFlash and DSpark checkpoints on a target of this type and of their width."""
    try:
        model = tiny_family(kind, sizes=FOR_FIXTURES)
        expected = generated(model)
    except Exception:
        return "not built at this width"
    target = wrap(model)
    if layer_count(model.config.get_text_config()) != FOR_FIXTURES[-1][0]:
        return "not built at this width"
    for name in fixtures:
        folder = ROOT / "tests" / "drafters" / "checkpoints" / name
        net = build_net(folder, read_layout(read_config(folder), name), target)
        drafter = CheckpointDrafter(net, target, attach_taps(target, TapPlan(net.layout.taps)))
        if speculative_decode(target, drafter, FixedLength(3), PROMPT, SETTINGS).tokens != expected:
            return f"{name} differs"
    return "yes"


def group_of(kind: str, model: PreTrainedModel) -> str:
    if hasattr(model.config, "vision_config"):
        return "vision"
    with suppress(Exception):
        if any("Linear" in type(layer).__name__ for layer in DynamicCache(config=model.config).layers):
            return "hybrid"
    return "mixture" if any("experts" in name for name, _ in model.named_modules()) else "dense"


def _close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max()))


def _words(attempt: Callable[[], str]) -> str:
    try:
        return attempt()
    except Exception as error:
        return _short(error)


def _short(error: Exception) -> str:
    kind = "" if isinstance(error, DraftgaugeError) else f"{type(error).__name__}: "
    return textwrap.shorten(f"{kind}{error}", 200, placeholder=" ...")


def _reason(error: ModelError) -> str:
    """A refusal without its advice, and without where the model lay."""
    return re.sub(r"\S+/tmp\w+", "the folder", str(error)).rpartition(": ")[0]


def outcomes(kinds: list[str]) -> Iterator[Row]:
    """The rows of many types, in processes that each use one core."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(2, os.cpu_count() or 1), _quiet, maxtasksperchild=40) as pool:
        yield from pool.imap_unordered(outcome, kinds)


def _quiet() -> None:
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def read_outcomes() -> list[Row]:
    rows: list[Row] = json.loads(OUTCOMES.read_text())["types"] if OUTCOMES.is_file() else []
    return rows


def counts(rows: list[Row]) -> str:
    lines = []
    for what, kinds in (("causal", CAUSAL), ("image-text", VISION)):
        here = [row for row in rows if row["type"] in kinds]
        found = Counter(row["outcome"] for row in here)
        ready = {name: sum(row.get(name) == "yes" for row in here) for name in ("hidden", "keys", "drafters")}
        lines.append(f"{len(here)} {what} types: {dict(found)}; taps right or lossless: {ready}")
    return "\n".join(lines)


def table(rows: list[Row]) -> str:
    """The families of ``docs/engines.md``: the most used first, then the others by group."""
    known = {row["type"]: row for row in rows if row["outcome"] == "ok"}
    alike: dict[tuple[str, ...], list[str]] = {}
    for kind in MOST_USED.split():
        if kind in known:
            row = known[kind]
            engines = "lean, static, modules" if row["engine"] == "lean" else row["engine"]
            dense = "one pass a depth" if row["dense"] == "together" else "one by one"
            taps = (_yes(row["hidden"]), _yes(row["keys"]))
            alike.setdefault((engines, dense, *taps), []).append(kind)
    lines = ["| type | engines | dense trace | hidden states | keys and values |", "|---|---|---|---|---|"]
    lines += [f"| {', '.join(kinds)} | {' | '.join(what)} |" for what, kinds in alike.items()]
    lines += ["", "| group | run | hidden states | keys and values |", "|---|---|---|---|"]
    for group in ("dense", "mixture", "hybrid", "vision"):
        here = [row for row in known.values() if row["group"] == group]
        tapped = [sum(row[part] == "yes" for row in here) for part in ("hidden", "keys")]
        lines.append(f"| {group} | {len(here)} | {tapped[0]} | {tapped[1]} |")
    return "\n".join(lines) + "\n"


def _yes(value: str) -> str:
    return "yes" if value == "yes" else "no"


def page_with(page: str, rows: list[Row]) -> str:
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + table(rows) + END + rest.partition(END)[2]


def wrong(row: Mapping[str, Any]) -> bool:
    known = ("ok", "refused", "not built", *(("trace differs",) if row["type"] in TWO_PATHS else ()))
    bad = row["outcome"] not in known
    parts = [str(row.get(part)) for part in ("hidden", "keys", "drafters")]
    return bad or any("differ" in part or "Error: " in part for part in parts)


def main() -> int:
    parser = argparse.ArgumentParser(description="Try a tiny model of every type of transformers.")
    parser.add_argument("kinds", nargs="*", help="types; all if none is named")
    parser.add_argument("--write", action="store_true", help="keep the outcomes, and the table in docs/engines.md")
    arguments = parser.parse_args()
    rows = []
    for row in outcomes(arguments.kinds or [*CAUSAL, *VISION]):
        rows.append(row)
        print(json.dumps(row), flush=True)
    if arguments.write:
        kept = {row["type"]: row for row in read_outcomes() + rows}
        lines = ",\n".join(json.dumps(kept[kind], separators=(",", ":")) for kind in sorted(kept))
        OUTCOMES.write_text(f'{{"transformers": "{transformers.__version__}", "types": [\n{lines}\n]}}\n')
        PAGE.write_text(page_with(PAGE.read_text(), read_outcomes()))
    print(counts(rows))
    return int(any(wrong(row) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
