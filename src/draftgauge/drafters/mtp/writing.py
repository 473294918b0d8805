"""A trained MTP head as a checkpoint in Qwen3.5's keys, which its weights have already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from draftgauge.core.errors import DraftgaugeError
from draftgauge.drafters.mtp.families import FAMILIES, trained_family
from draftgauge.drafters.reuse.config import ReuseConfig


def check_exportable(config: ReuseConfig) -> None:
    """Refuse what is no MTP head, and a head of a family that ships it otherwise or not at all."""
    if not config.traits.own_layer or trained_family(config.target_family) not in FAMILIES.values():
        what = "an MTP head" if config.traits.own_layer else f"the {config.design} design as an MTP head"
        raise DraftgaugeError(
            f"no serving engine loads {what} of {config.target_family} targets in the layout of Qwen3.5: run it with "
            "draftgauge itself, with --drafter FOLDER"
        )


def checkpoint_tensors(config: ReuseConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return dict(weights)


def checkpoint_config(config: ReuseConfig) -> dict[str, Any]:
    """What the target's own ``config.json`` must say of the head, but for the dtype."""
    return {"model_type": config.target_family, "mtp_num_hidden_layers": 1}
