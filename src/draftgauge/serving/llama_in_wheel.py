"""llama.cpp's server as it is inside the wheel xllamacpp: ``python -m draftgauge.serving.llama_in_wheel``, with those
options of ``llama-server`` that draftgauge gives.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from typing import Any

import xllamacpp

KINDS = {"f32": xllamacpp.ggml_type.GGML_TYPE_F32, "f16": xllamacpp.ggml_type.GGML_TYPE_F16}
ATTENTION = {"off": xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED}
NGRAMS = "speculative.ngram_simple"
# Option -> its type, and where the wheel keeps it.
OPTIONS: dict[str, tuple[Callable[[str], Any], str]] = {
    "--model": (str, "model.path"),
    "--port": (int, "port"),
    "--parallel": (int, "n_parallel"),
    "--ctx-size": (int, "n_ctx"),
    "--threads": (int, "cpuparams.n_threads cpuparams_batch.n_threads speculative.draft.cpuparams.n_threads"),
    "--cache-type-k": (KINDS.get, "cache_type_k"),
    "--cache-type-v": (KINDS.get, "cache_type_v"),
    "--flash-attn": (ATTENTION.get, "flash_attn_type"),
    "--spec-draft-model": (str, "speculative.draft.mparams.path"),
    "--spec-draft-n-max": (int, "speculative.draft.n_max"),
    "--spec-draft-p-min": (float, "speculative.draft.p_min"),
    "--spec-draft-type-k": (KINDS.get, "speculative.draft.cache_type_k"),
    "--spec-draft-type-v": (KINDS.get, "speculative.draft.cache_type_v"),
    "--spec-ngram-simple-size-n": (int, f"{NGRAMS}.size_n"),
    "--spec-ngram-simple-size-m": (int, f"{NGRAMS}.size_m"),
    "--spec-synth-rates": (lambda rates: [*map(float, rates.split(","))], "speculative.synth_rates"),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, (kind, places) in OPTIONS.items():
        parser.add_argument(name, type=kind, dest=places)
    parser.add_argument("--host")
    parser.add_argument("--spec-type", help="one of them")
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--no-repack", action="store_true")
    given = vars(parser.parse_args())

    params = xllamacpp.CommonParams()
    params.hostnames, params.warmup = [given.pop("host")], False
    params.endpoint_metrics, params.no_extra_bufts = given.pop("metrics"), given.pop("no_repack")
    if kind := given.pop("spec_type"):
        name = f"COMMON_SPECULATIVE_TYPE_{kind.upper().replace('-', '_')}"
        params.speculative.types = [getattr(xllamacpp.common_speculative_type, name)]
    for places, value in given.items():
        for place in places.split() if value is not None else ():
            *owners, attribute = place.split(".")
            owner = params
            for each in owners:
                owner = getattr(owner, each)
            setattr(owner, attribute, value)
    server = xllamacpp.Server(params)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    del server


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})  # before the server's threads inherit it
    main()
