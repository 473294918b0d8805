"""The tensors of MTP heads in the files of a target, or in a folder of their own; nothing else of them is read.

A trained head is written in Qwen3.5's keys, which its weights have already.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.drafters.formats.files import weight_files
from draftgauge.drafters.mtp.families import COUNTS, FAMILIES, OUTER, UNUSED, MtpFamily, family_of, trained_family
from draftgauge.drafters.reuse.config import ReuseConfig
from draftgauge.models.folder import INDEX, OF_MTP, read_mapping

SHOWN = 4  # names that a message lists
_MAIN = re.compile(r"^layers\.0\.|^embed_tokens\.|^embeddings\.")  # tensors of a whole model


@dataclass(frozen=True)
class Stored:
    """Where a tensor lies: the file, its name there, shape and dtype (of safetensors)."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


def plain(name: str) -> str:
    """A tensor's name without what wrappers put in front."""
    return next((name.removeprefix(outer) for outer in OUTER if name.startswith(outer)), name)


def headers(source: str | Path) -> dict[str, Stored]:
    """All tensors of a folder or repository by plain names, from the headers of its safetensors files."""
    folder = Path(source)
    paths = sorted(folder.glob("*.safetensors")) if folder.is_dir() else weight_files(source)
    found: dict[str, Stored] = {}
    for path in paths:
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                part = file.get_slice(name)
                found[plain(name)] = Stored(path, name, tuple(part.get_shape()), part.get_dtype())
    return found


def read(stored: Mapping[str, Stored]) -> dict[str, Tensor]:
    """These tensors, on the CPU; nothing else of their files is read."""
    tensors: dict[str, Tensor] = {}
    for path in sorted({each.path for each in stored.values()}):
        with _opened(path) as file:
            tensors |= {name: file.get_tensor(each.name) for name, each in stored.items() if each.path == path}
    return tensors


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, "pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is damaged or half downloaded ({error}): download it again") from error


def is_extracted(source: str | Path) -> bool:
    """Whether a folder holds the tensors of an MTP head and no whole model."""
    folder = Path(source)
    if not folder.is_dir() or (folder / "drafter.json").is_file() or not any(folder.glob("*.safetensors")):
        return False
    index = folder / INDEX
    names = read_mapping(index).get("weight_map", {}) if index.is_file() else headers(folder)
    found = [plain(name) for name in names]
    return any(OF_MTP.match(name) for name in found) and not any(_MAIN.search(name) for name in found)


def announced(config: Any) -> int:
    """Heads that a configuration (an object or a mapping) announces; 0 where it names none."""
    get = config.get if isinstance(config, Mapping) else lambda name: getattr(config, name, None)
    return next((int(value) for name in COUNTS if (value := get(name))), 0)


def known_family(target_type: str, found: Mapping[str, Stored], source: str | Path) -> tuple[str, MtpFamily]:
    known = family_of(target_type)
    if known is None:
        there = some(name for name in found if OF_MTP.match(name))
        raise ModelError(
            f"MTP heads of {target_type} targets are not run here: {source} holds {there or 'no MTP tensors'}, and "
            f"wanted are those of a known family, as mtp.fc or layers.N.eh_proj"
        )
    return known


def heads_of(family: MtpFamily, found: Mapping[str, Stored], layers: int) -> list[dict[str, Stored]]:
    """The tensors of each head by plain names, as many heads as there are; ``layers`` are the target's."""
    heads: list[dict[str, Stored]] = []
    while not heads or "{" in family.projection:
        number = len(heads)
        begins = (*family.prefixes(number, layers), *(f"{name}." for name in family.named(number, layers).values()))
        own = {family.renaming(name): stored for name, stored in found.items() if name.startswith(begins)}
        own = {name: stored for name, stored in own.items() if not any(unused in name for unused in UNUSED)}
        if not own:
            break
        heads.append(own)
    return heads


def some(names: Any) -> str:
    listed = sorted(names)
    return ", ".join(listed[:SHOWN]) + (f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else "")


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
