"""What the headers of a checkpoint, and the few numbers of its norms, tell of its MTP heads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedConfig

from draftgauge.core.errors import ModelError
from draftgauge.drafters.mtp.families import MtpFamily
from draftgauge.drafters.mtp.files import Stored, announced, headers, heads_of, known_family, read, some
from draftgauge.models.base import layer_count
from draftgauge.models.folder import OF_MTP

PLAIN_DTYPES = ("F16", "BF16", "F32", "F64")
SHIFTED = 0.5  # norms of a head and of the target's layers lie closer than that, where one has not 1 added
_QUANTISED = re.compile(r"(qweight|qzeros|weight_packed|weight_scale(_inv|_2)?|g_idx)$")
_NORMS = re.compile(r"(input_layernorm|post_attention_layernorm)\.weight$")


class HeadFaults(NamedTuple):
    """In words; empty where nothing is wrong, None where it cannot be told."""

    missing: str
    quantised: Any = None
    shifted: Any = None
    made_for: Any = None


def head_faults(source: str | Path, text: PreTrainedConfig, target: str | Path) -> HeadFaults:
    """What is wrong with the MTP heads in ``source`` for a target with this configuration in ``target``."""
    found, layers = headers(source), layer_count(text)
    try:
        _, family = known_family(text.model_type, found, source)
    except ModelError as error:
        return HeadFaults(str(error))
    heads, wanted = heads_of(family, found, layers), max(1, announced(text))
    scales = sorted(name for name in found if OF_MTP.match(name) and _QUANTISED.search(name))
    names = [name for number in range(len(heads)) for name in family.named(number, layers).values()]
    lacking = [f"{name}.weight" for name in names if f"{name}.weight" not in _all(heads)]
    lacking = [name for name in lacking if not any(scale.startswith(name.removesuffix("weight")) for scale in scales)]
    if (len(heads) < wanted and "{" in family.projection) or not heads:
        lacking += [f"{name}.weight" for name in family.named(len(heads), layers).values()]
    if lacking:
        said = f"{source} announces {announced(text)} MTP heads and holds {len(heads)}: {some(lacking)} are missing"
        return HeadFaults(said)
    held = _all(heads)
    odd = scales + sorted(name for name, each in held.items() if each.dtype not in PLAIN_DTYPES)
    width = text.hidden_size
    joins = [held.get(f"{family.named(number, layers)['projection']}.weight") for number in range(len(heads))]
    other = [each.name for each in joins if each is not None and each.dtype in PLAIN_DTYPES]
    other = [] if all(each is None or each.shape == (width, 2 * width) for each in joins) else other
    return HeadFaults(
        "",
        f"{some(odd)} are quantised" if odd else "",
        None if odd else _shifted(family, held, headers(target)),
        f"a target of another width than {width} ({some(other)})" if other else "",
    )


def _all(heads: list[dict[str, Stored]]) -> dict[str, Stored]:
    return {name: stored for head in heads for name, stored in head.items()}


def _shifted(family: MtpFamily, held: Mapping[str, Stored], target: Mapping[str, Stored]) -> str | None:
    """Whether the norms of a head's layers lie about 1 above or below those of the target's own layers."""
    own = sorted(_means(held))
    theirs = sorted(_means({name: stored for name, stored in target.items() if name not in held}))
    if not own or not theirs:
        return None
    middle, usual = own[len(own) // 2], theirs[len(theirs) // 2]
    if abs(middle - usual) < SHIFTED:
        return ""
    how = "1 was added twice" if middle > usual else "1 was never added, or taken off"
    rule = "1 + w" if family.one_plus else "w"
    return f"weights of its norms lie at {middle:.2f}, the target's at {usual:.2f} (they multiply by {rule}): {how}"


def _means(stored: Mapping[str, Stored]) -> Iterator[float]:
    norms = {name: each for name, each in stored.items() if _NORMS.search(name) and each.dtype in PLAIN_DTYPES}
    return (float(tensor.float().mean()) for tensor in read(norms).values())
