"""Drafters that reuse the target's hidden states, its KV cache, or both (KVShot, arXiv 2604.26412)."""

from draftgauge.drafters.reuse.building import count_parameters, frequent_tokens, matched_widths, new_net, warm_start
from draftgauge.drafters.reuse.config import DESIGNS, INJECTIONS, Design, ReuseConfig, reuse_config
from draftgauge.drafters.reuse.drafting import ChainState
from draftgauge.drafters.reuse.live import ReuseDrafter, ReuseSource
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.persistence import (
    is_drafter,
    load_drafter,
    read_description,
    save_drafter,
    target_fingerprint,
)
from draftgauge.drafters.reuse.unroll import unroll, unroll_states

__all__ = [
    "DESIGNS",
    "INJECTIONS",
    "ChainState",
    "Design",
    "ReuseConfig",
    "ReuseDrafter",
    "ReuseNet",
    "ReuseSource",
    "count_parameters",
    "frequent_tokens",
    "is_drafter",
    "load_drafter",
    "matched_widths",
    "new_net",
    "read_description",
    "reuse_config",
    "save_drafter",
    "target_fingerprint",
    "unroll",
    "unroll_states",
    "warm_start",
]
