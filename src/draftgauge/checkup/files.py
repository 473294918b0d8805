"""What the files of a pair tell the doctor, and its layers live: the part of it that needs the libraries of models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from draftgauge.checkup.checks import CHECKPOINT, MTP, UNKNOWN, Evidence
from draftgauge.core.errors import ModelError
from draftgauge.core.parts import UNCOMPRESSED
from draftgauge.drafters.base import Drafting, choose_drafter, drafter_kind
from draftgauge.drafters.formats.building import read_layout, target_ids
from draftgauge.drafters.formats.eagle3 import Eagle3Layout
from draftgauge.drafters.formats.files import read_config, read_tensors
from draftgauge.drafters.formats.live import CheckpointDrafter, CheckpointSource
from draftgauge.drafters.formats.settings import rope_base, with_rope_base
from draftgauge.drafters.language_model import LanguageModelSource
from draftgauge.drafters.mtp.checking import head_faults
from draftgauge.drafters.mtp.live import MtpSource
from draftgauge.drafters.reuse.persistence import is_drafter, read_description, trained_compression
from draftgauge.models.base import CachedModel
from draftgauge.models.device import method_of, upload
from draftgauge.models.folder import files_of, is_gguf
from draftgauge.models.loading import load_tokenizer, made_by_others, quantisation_method
from draftgauge.models.spec import read_configuration
from draftgauge.models.taps import TapPlan, attach_taps
from draftgauge.pair.loading import load_pair_of, target_of
from draftgauge.requests import PairSpec
from draftgauge.traces.run import Manifest
from draftgauge.traces.trace import Trace
from draftgauge.training.reuse.prepare import known_fingerprint

COMPARED = 4  # prompts on which other layers are tried


def of_recorded(spec: PairSpec, manifest: Manifest) -> Evidence:
    """What the files say of the pair of a run; nothing is fetched where they are not here."""
    for entry in filter(None, (manifest.target, manifest.draft)):
        files_of(entry.source)
    return of_files(spec, manifest.target.source, *choose_drafter(spec.drafter))


def of_files(spec: PairSpec, target: str, kind: str, source: str | Path | None) -> Evidence:
    """What the files of a pair say of it, before any weights are loaded."""
    folder, trusted = target_of(spec), spec.loading.trust_remote_code
    tokenizer = load_tokenizer(spec.loading.tokenizer or folder, trusted)
    evidence = Evidence(target, kind, tokenizer)
    if kind == MTP:
        text = read_configuration(folder, trusted).get_text_config()
        missing, quantised, shifted, made_for = head_faults(source or folder, text, folder)
        evidence = replace(evidence, mtp_missing=missing, mtp_quantised=quantised, mtp_shifted=shifted)
        return replace(evidence, made_for=made_for)
    if source is None:
        return evidence
    if drafter_kind(kind) is LanguageModelSource and not is_gguf(source):
        theirs = load_tokenizer(source, trusted, role="draft")
        held = (quantisation_method(folder) or UNCOMPRESSED, quantisation_method(source) or UNCOMPRESSED)
        return replace(evidence, draft_tokenizer=theirs, compression=UNKNOWN if made_by_others(folder) else held)
    if kind == CHECKPOINT:
        config = read_config(source)
        layout, method = read_layout(config, str(source)), method_of(config, source)
        error, tensors = "", read_tensors(source, spec.loading.allow_pickle)
        try:
            target_ids(source, layout, tensors)
        except ModelError as wrong:
            error = str(wrong)
        named = drafter_kind(kind).trained_for(source) or ""
        same, like = (Path(named).name.lower() == Path(target).name.lower(), Path(named).name.lower() in target.lower())
        longest = layout.decoder.rope.get("max_position_embeddings") or UNKNOWN
        made_for = "" if same else UNKNOWN if like or Path(target).is_dir() else named  # a copy, as -AWQ, or another
        held = (UNCOMPRESSED, method or UNCOMPRESSED)
        return replace(evidence, map_error=error, made_for=made_for, longest=longest, compression=held)
    if is_drafter(source):
        description = read_description(Path(source))
        config = description["config"]
        known, other = known_fingerprint(folder), config.get("target_source") or "another checkpoint"
        made_for = UNKNOWN if known is None else "" if config["target_fingerprint"] == known else other
        return replace(evidence, made_for=made_for, compression=(UNCOMPRESSED, trained_compression(description)))
    return evidence


def layout_rates(manifest: Manifest, spec: PairSpec, trace: Trace) -> dict[str, float]:
    """How often a checkpoint's first token is right, read as its files say, and with other settings of config.json.

    Converters drop these: the layers, ``norm_before_residual`` and the base of the rotary embedding.
    """
    pair = load_pair_of(manifest, spec)
    assert isinstance(pair.draft_source, CheckpointSource)
    net, target = pair.draft_source.net, pair.target
    text = target.module.config.get_text_config()
    own, rope = net.layout.taps, net.layout.decoder.rope
    readings = {"its own settings": net.layout}
    for layers in (tuple(layer - 1 for layer in own), tuple(layer + 1 for layer in own), own[::-1]):
        if min(layers) >= 0 and max(layers) < text.num_hidden_layers - 1 and layers != own:
            named = f"target_layer_ids {list(layers)} (eagle_aux_hidden_state_layer_ids {[n + 1 for n in layers]})"
            readings[named] = replace(net.layout, taps=layers)
    if isinstance(net.layout, Eagle3Layout):
        other = not net.layout.norm_before_residual
        readings[f"norm_before_residual {str(other).lower()}"] = replace(net.layout, norm_before_residual=other)
    theirs, held = (rope_base(table) for table in (text.to_dict(), rope))
    if theirs is not None and theirs != held:
        based = replace(net.layout.decoder, rope=with_rope_base(rope, theirs))
        readings[f"rope_theta {theirs}, the target's"] = replace(net.layout, decoder=based)
    rates: dict[str, float] = {}
    for name, layout in readings.items():
        taps = attach_taps(target, TapPlan(layout.taps))
        drafter = CheckpointDrafter(net.with_layout(layout), target, taps, pair.end_tokens)  # type: ignore[arg-type]
        rates[name] = _right(drafter, target, trace)
    return rates


def mtp_rates(manifest: Manifest, spec: PairSpec, trace: Trace) -> dict[str, float]:
    """The same of an MTP head, read as its family is, across the target's final norm, and with inputs exchanged."""
    pair = load_pair_of(manifest, spec)
    assert isinstance(pair.draft_source, MtpSource)
    source, net = pair.draft_source, pair.draft_source.net
    rates: dict[str, float] = {}
    for name in ("", "after_norm", "hidden_first"):
        other: dict[str, Any] = {name: not getattr(net.family, name)} if name else {}
        family = replace(net.family, **other)
        source.net = net.read_as(family, pair.target.module)
        drafter = source.drafter(pair.target, pair.taps, Drafting(pair.end_tokens))
        order = "state, then embedding" if family.hidden_first else "embedding, then state"
        place = "behind" if family.after_norm else "before"
        rates[f"{order}, {place} the final norm"] = _right(drafter, pair.target, trace)
    return rates


def _right(drafter: CheckpointDrafter, target: CachedModel, trace: Trace) -> float:
    """The share of first drafted tokens that are those of the outputs."""
    right: list[bool] = []
    for prompt, tokens in list(zip(trace.prompts, trace.outputs, strict=True))[:COMPARED]:
        text, output = list(prompt.prompt_token), tokens.tolist()
        target.reset()
        target.forward(upload([*text, *output], target.spec.device), last_only=True)
        drafts = drafter.draft_everywhere(text, output, 1, target.spec.vocabulary)
        right += (drafts.tokens[:, 0] == tokens).tolist()
    return sum(right) / len(right)
