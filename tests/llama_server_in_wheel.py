"""llama.cpp's server as it is inside the wheel xllamacpp, with the options of ``llama-server`` that the tests give."""

from __future__ import annotations

import argparse
import signal

import xllamacpp

KINDS = {"f32": xllamacpp.ggml_type.GGML_TYPE_F32, "f16": xllamacpp.ggml_type.GGML_TYPE_F16}
SPECULATION = {
    "draft-simple": xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE,
    "draft-eagle3": xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--model", "--host", "--spec-type", "--spec-draft-model", "--flash-attn"):
        parser.add_argument(name)
    for name in ("--port", "--parallel", "--ctx-size", "--threads", "--spec-draft-n-max"):
        parser.add_argument(name, type=int)
    for name in ("--cache-type-k", "--cache-type-v", "--spec-draft-type-k", "--spec-draft-type-v"):
        parser.add_argument(name, default="f16", choices=KINDS)
    parser.add_argument("--spec-draft-p-min", type=float, default=0.0)
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--no-repack", action="store_true")
    given = parser.parse_args()

    params = xllamacpp.CommonParams()
    params.model.path, params.hostnames, params.port = given.model, [given.host], given.port
    params.n_parallel, params.n_ctx, params.warmup = given.parallel, given.ctx_size, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    params.cache_type_k, params.cache_type_v = KINDS[given.cache_type_k], KINDS[given.cache_type_v]
    if given.flash_attn == "off":
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.endpoint_metrics, params.no_extra_bufts = given.metrics, given.no_repack
    if given.spec_type:
        params.speculative.types = [SPECULATION[given.spec_type]]
        draft = params.speculative.draft
        draft.mparams.path, draft.n_max, draft.p_min = (
            given.spec_draft_model,
            given.spec_draft_n_max,
            given.spec_draft_p_min,
        )
        draft.cache_type_k, draft.cache_type_v = KINDS[given.spec_draft_type_k], KINDS[given.spec_draft_type_v]
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = given.threads
    server = xllamacpp.Server(params)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    del server


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})  # before the server's threads inherit it
    main()
