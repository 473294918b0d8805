"""The settings in a checkpoint's ``config.json``, wherever they stand: typed, without contradictions, and none ignored
that changes what is computed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftgauge.core.errors import ModelError
from draftgauge.models.lean_families import LENGTH_DEPENDENT_ROPE

_ROPE = ("rope_parameters", "rope_theta", "rope_scaling", "max_position_embeddings")
_WINDOWS = ("sliding_window", "use_sliding_window", "max_window_layers", "sliding_window_non_causal")
_OF_ROPE = {
    *("rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "attention_factor"),
    *("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "low_freq_factor", "high_freq_factor"),
    *("short_factor", "long_factor", "mrope_section", "mrope_interleaved"),  # the last two turn images alone otherwise
}
# what names of settings that change attention, positions or scales hold
_TELLING = re.compile(
    "rope|rotary|neox|interleav|original_max|window|swa|sliding|sink|causal|bidirectional|attention_chunk|alibi|scal"
    "|multiplier|softcap|aux_hidden_state$|projector_type"
)
_NEUTRAL: dict[str, tuple[Any, ...]] = {  # values with which such a setting changes nothing, where those are not empty
    "projector_type": ("dflash", "dspark"),
    **dict.fromkeys(("partial_rotary_factor", "rotary_pct", "embedding_multiplier", "residual_multiplier"), (1,)),
    **dict.fromkeys(("logits_scaling", "input_embedding_scale", "output_multiplier"), (1,)),
    **dict.fromkeys(("rope_is_neox_style", "is_neox_style", "use_aux_hidden_state", "causal", "is_causal"), (True,)),
}


@dataclass(frozen=True)
class Settings:
    """Settings stand in ``dflash_config`` (``nested``), among those of the ``decoder``, or beside both."""

    config: Mapping[str, Any]
    decoder: Mapping[str, Any]
    nested: Mapping[str, Any]
    where: str

    def get(self, name: str, default: Any = None) -> Any:
        places = (self.config, self.nested, self.decoder)
        said = [place[name] for place in places if place.get(name) is not None]
        if any(value != said[0] for value in said):
            raise ModelError(
                f"{self.where}: {name} is given twice, as {said[0]!r} and {said[-1]!r}: keep the right one"
            )
        return said[0] if said else default

    def integer(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            shown = "is missing" if value is None else f"must be a whole number of at least {least}, not {value!r}"
            raise ModelError(f"{self.where}: {name} {shown}: is config.json whole?")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise ModelError(f"{self.where}: {name} must be true or false, not {value!r}")
        return value

    def spelled(self, names: Sequence[str]) -> bool | None:
        """A flag of several names, of which those that are given agree; None if none is."""
        said = {name: self.flag(name) for name in names if self.get(name) is not None}
        if len(set(said.values())) > 1:
            raise ModelError(f"{self.where}: {' and '.join(said)} contradict each other: keep the right one")
        return next(iter(said.values()), None)

    def number(self, name: str, default: float) -> float:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise ModelError(f"{self.where}: {name} must be a number of at least 0, not {value!r}")
        return float(value)

    def layers(self, name: str, place: Mapping[str, Any], shift: int) -> tuple[int, ...]:
        ids = place.get(name)
        if ids is None:
            return ()
        if not isinstance(ids, list) or not all(type(i) is int for i in ids) or len(set(ids)) < len(ids) or not ids:
            raise ModelError(f"{self.where}: {name} must list target layers, each once, not {ids!r}")
        if min(ids) - shift < 0:
            raise ModelError(
                f"{self.where}: {name} {ids} names the target's token embedding, which is not tapped: drafters that "
                "read decoder layers are run"
            )
        return tuple(i - shift for i in ids)

    def taps(self) -> tuple[int, ...]:
        engine = self.config.get("eagle_config") or {}
        said = [
            self.layers("eagle_aux_hidden_state_layer_ids", self.config, 1),
            self.layers("aux_hidden_state_layer_ids", self.config, 1),
            self.layers("target_layer_ids", self.config, 0),
            self.layers("target_layer_ids", self.nested, 0),
            self.layers("eagle_aux_hidden_state_layer_ids", engine, 0),
        ]
        named = dict.fromkeys(layers for layers in said if layers)
        if len({len(layers) for layers in named}) < len(named):  # of other lengths the weights show which is right
            raise ModelError(
                f"{self.where}: target layers are given twice, as outputs of the layers "
                f"{' and '.join(str(list(layers)) for layers in named)}: keep the right ones"
            )
        return next(iter(named), ())

    def proposed(self) -> int | None:
        """The most tokens that speculators' configuration proposes at a time; None if it does not say."""
        methods = (self.config.get("speculators_config") or {}).get("proposal_methods") or []
        counts = [each.get("speculative_tokens") for each in methods if isinstance(each, Mapping)]
        whole = [count for count in counts if type(count) is int and count > 0]
        if not isinstance(methods, list) or len(whole) < len(methods):
            raise ModelError(f"{self.where}: each of proposal_methods must give a number of speculative_tokens")
        return max(whole, default=None)

    def check_known(self, kind: str, read: Sequence[str]) -> None:
        """Refuse settings beside those that are ``read`` that change what a drafter of this kind computes."""
        places = (self.config, self.nested, self.decoder, self.config.get("eagle_config") or {})
        rope = [place.get(name) or {} for place in places for name in ("rope_parameters", "rope_scaling")]
        strange = {
            name
            for place, known in [
                *((place, {*_ROPE, *_WINDOWS, *read}) for place in places),
                *((r, _OF_ROPE) for r in rope),
            ]
            for name, value in place.items()
            if name not in known and (known is _OF_ROPE or _TELLING.search(name))
            if (value not in _NEUTRAL[name] if name in _NEUTRAL else value)
            if value is not None
        }
        if strange:
            raise ModelError(f"{self.where}: {kind} drafters with {', '.join(sorted(strange))} are not run here")


def settings_of(config: Mapping[str, Any], where: str) -> Settings:
    return Settings(config, config.get("transformer_layer_config") or config, config.get("dflash_config") or {}, where)


def rotary_settings(settings: Settings) -> dict[str, Any]:
    """The settings of the rotary embedding, which all tables of them share."""
    rope = {name: value for name in _ROPE if (value := settings.get(name)) is not None}
    said = {"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {}
    for table in ("rope_parameters", "rope_scaling"):
        for name, value in rope.get(table, {}).items():
            if isinstance(value, Mapping):
                raise ModelError(f"{settings.where}: {table} must describe one rotary embedding, not {rope[table]!r}")
            name = "rope_type" if name == "type" else name
            if said.setdefault(name, value) != value:
                raise ModelError(
                    f"{settings.where}: {name} of the rotary embedding is given twice, as {said[name]!r} and "
                    f"{value!r}: keep the right one"
                )
    if (scaling := said.get("rope_type")) in LENGTH_DEPENDENT_ROPE:
        raise ModelError(f"{settings.where}: rotary embeddings that change with the text ({scaling}) are not run here")
    return rope
