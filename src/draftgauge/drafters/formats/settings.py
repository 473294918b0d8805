"""The settings in a checkpoint's ``config.json``: typed, without contradictions, none ignored that changes results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from draftgauge.core.errors import ModelError
from draftgauge.models.engines.lean_weights import LENGTH_DEPENDENT_ROPE

_ROPE = ("rope_parameters", "rope_theta", "rope_scaling", "max_position_embeddings")
_WINDOWS = ("sliding_window", "use_sliding_window", "max_window_layers", "sliding_window_non_causal")
_LEAST = {"factor": 1.0, "theta": 1.0}  # of the numbers of a rotary embedding, where it is not just above 0
_NUMBERS = {*_LEAST, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "low_freq_factor"}
_NUMBERS |= {"high_freq_factor", "original_max_position_embeddings"}
_OF_ROPE = _NUMBERS | {"rope_theta", "rope_type", "type", "truncate", "short_factor", "long_factor"}
_OF_ROPE |= {"mrope_section", "mrope_interleaved"}  # of images alone
_TELLING = re.compile(  # what the names of settings that change attention, positions or scales hold
    "rope|rotary|neox|interleav|original_max|window|swa|sliding|sink|causal|bidirectional|attention_chunk|alibi|scal"
    "|multiplier|softcap|aux_hidden_state$|projector_type|^conv_|selector|refiner|lattice|beam"
)
_ONES = "partial_rotary_factor rotary_pct embedding_multiplier residual_multiplier logits_scaling rope_is_neox_style"
_ONES += " is_neox_style use_aux_hidden_state causal is_causal input_embedding_scale output_multiplier"
_FROM_ANCHOR = ("sample_from_anchor", "query_zero_predicts_next", "shift_label")  # of speculators, DeepSpec, Domino
MASKS = ("mask_token_id", "ptd_token_id", "pard_token", "dspark_noise_token_id")  # of speculators, AWS, AMD, DeepSeek
# values with which such a setting changes nothing, where those are not empty
_NEUTRAL: dict[str, tuple[Any, ...]] = dict.fromkeys(_ONES.split(), (1,)) | {"projector_type": ("dflash", "dspark")}


class Settings(NamedTuple):
    """Settings stand in ``dflash_config`` (``nested``), among those of the ``decoder``, or beside both."""

    config: Mapping[str, Any]
    decoder: Mapping[str, Any]
    nested: Mapping[str, Any]
    where: str

    def refuse(self, problem: str) -> NoReturn:
        raise ModelError(f"{self.where}: {problem}")

    def get(self, name: str, default: Any = None) -> Any:
        said = [place[name] for place in (self.config, self.nested, self.decoder) if place.get(name) is not None]
        if any(value != said[0] for value in said):
            self.refuse(f"{name} is given twice, as {said[0]!r} and {said[-1]!r}: keep the right one")
        return said[0] if said else default

    def integer(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
            shown = "is missing" if value is None else f"must be a whole number of at least {least}, not {value!r}"
            self.refuse(f"{name} {shown}: is config.json whole?")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name, default)
        return value if isinstance(value, bool) else self.refuse(f"{name} must be true or false, not {value!r}")

    def spelled(self, names: Sequence[str]) -> bool | None:
        """A flag of several names, of which those that are given agree; None if none is."""
        said = {name: self.flag(name) for name in names if self.get(name) is not None}
        if len(set(said.values())) > 1:
            self.refuse(f"{' and '.join(said)} contradict each other: keep the right one")
        return next(iter(said.values()), None)

    def number(self, name: str, default: float) -> float:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            self.refuse(f"{name} must be a number of at least 0, not {value!r}")
        return float(value)

    def layers(self, name: str, place: Mapping[str, Any], shift: int) -> tuple[int, ...]:
        ids = place.get(name)
        if ids is None:
            return ()
        if not isinstance(ids, list) or not all(type(i) is int for i in ids) or len(set(ids)) < len(ids) or not ids:
            self.refuse(f"{name} must list target layers, each once, not {ids!r}")
        if min(ids) < shift:
            self.refuse(
                f"{name} {ids} names the target's token embedding, which is not tapped: drafters that read decoder "
                "layers are run"
            )
        return tuple(i - shift for i in ids)

    def taps(self) -> tuple[int, ...]:
        engine = self.config.get("eagle_config") or {}
        said = [self.layers(f"{name}aux_hidden_state_layer_ids", self.config, 1) for name in ("eagle_", "")]
        said += [self.layers("target_layer_ids", place, 0) for place in (self.config, self.nested)]
        said += [self.layers("eagle_aux_hidden_state_layer_ids", engine, 0)]
        named = dict.fromkeys(layers for layers in said if layers)
        if len({len(layers) for layers in named}) < len(named):  # of other lengths the weights show which is right
            self.refuse(
                f"target layers are given twice, from 0 as {' and '.join(map(str, named))}: keep the right ones"
            )
        return next(iter(named), ())

    def proposed(self) -> int | None:
        """The most tokens that speculators' configuration proposes at a time; None if it does not say."""
        methods = (self.config.get("speculators_config") or {}).get("proposal_methods") or []
        listed = methods if isinstance(methods, list) else [methods]
        counts: list[Any] = [each.get("speculative_tokens") if isinstance(each, Mapping) else None for each in listed]
        if not all(type(count) is int and count > 0 for count in counts):
            self.refuse(f"each of proposal_methods must give a number of speculative_tokens, not {methods!r}")
        return max(counts, default=None)

    def block(self, at_anchor: bool, usual: int | None = None) -> tuple[int, bool]:
        """Places of a block, and whether its first, of the last committed token, predicts the token after that one.

        A field says so; else the tokens that are proposed of a block; else how the family is trained (``at_anchor``).
        ``usual`` are the places where neither a size nor proposed tokens are given, of families that need no size.
        """
        said, tokens = self.spelled(_FROM_ANCHOR), self.proposed()
        block = self.integer("block_size", usual and (tokens or usual), least=2)
        places = block if said is not False else block - 1
        if tokens is not None and tokens > places:
            self.refuse(
                f"speculative_tokens {tokens} contradicts block_size {block}, of which {places} places "
                "predict: keep the right one"
            )
        if said is None and tokens is not None and tokens >= block - 1 and not usual:
            return block, tokens == block
        return block, at_anchor if said is None else said

    def mask_token(self, vocabulary: int) -> int:
        """The token that fills the places of a block, by any of its names."""
        said = {name: self.integer(name, least=0) for name in MASKS if self.get(name) is not None}
        if len(set(said.values())) > 1:
            self.refuse(f"{' and '.join(said)} contradict each other: keep the right one")
        mask = next(iter(said.values())) if said else self.integer(MASKS[0], least=0)
        return mask if mask < vocabulary else self.refuse(f"{min(said)} {mask} is not among {vocabulary} tokens")

    def check_known(self, kind: str, read: Sequence[str]) -> None:
        """Refuse settings beside those that are ``read`` that change what a drafter of this kind computes."""
        places = (self.config, self.nested, self.decoder, self.config.get("eagle_config") or {})
        found = [each for place in places for each in place.items() if _TELLING.search(each[0])]
        known = {*_ROPE, *_WINDOWS, *read}
        for rope in ("rope_parameters", "rope_scaling"):
            found += [each for place in places for each in (place.get(rope) or {}).items() if each[0] not in _OF_ROPE]
        changes = {name for name, value in found if (value not in _NEUTRAL[name] if name in _NEUTRAL else value)}
        changes -= known | {name for name, value in found if value is None}
        if changes:
            self.refuse(f"{kind} drafters with {', '.join(sorted(changes))} are not run here")

    def rotary(self, whole: bool) -> dict[str, Any]:
        """The settings of the rotary embedding; ``whole``: its base must be among them."""
        rope = {name: value for name in _ROPE if (value := self.get(name)) is not None}
        base, said = {"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {}, dict[str, Any]()
        for table in (base, rope.get("rope_parameters", {}), rope.get("rope_scaling", {})):
            for name, value in ((key.replace("rope_", ""), value) for key, value in table.items()):
                least = _LEAST.get(name, 1e-9)
                if isinstance(value, Mapping):
                    self.refuse(f"a configuration must describe one rotary embedding, not {table!r}")
                if name in _NUMBERS and (type(value) not in (int, float) or not least <= value < 2**63):
                    self.refuse(f"{name} of the rotary embedding must be a number, not {value!r}")
                if said.setdefault(name, value) != value:
                    self.refuse(f"the rotary embedding's {name} is given as {said[name]!r} and {value!r}: keep one")
        for name, needed in (("theta", whole), ("type", "factor" in said)):
            if needed and name not in said:
                self.refuse(f"{name} of the rotary embedding (rope_{name}) is missing: is config.json whole?")
        if (scaling := said.get("type")) in LENGTH_DEPENDENT_ROPE:
            self.refuse(f"rotary embeddings that change with the text ({scaling}) are not run here")
        return rope


def rope_base(config: Mapping[str, Any]) -> float | None:
    """The base of a rotary embedding, in either place of a configuration; None where there is not one."""
    return config.get("rope_theta", (config.get("rope_parameters") or {}).get("rope_theta"))


def with_rope_base(rope: Mapping[str, Any], base: float) -> dict[str, Any]:
    """The settings of :meth:`Settings.rotary` with another base."""
    named = {**rope, "rope_theta": base}
    if "rope_parameters" in rope:
        named["rope_parameters"] = {**rope["rope_parameters"], "rope_theta": base}
    return named
