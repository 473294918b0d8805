"""OpenVINO GenAI's own pipelines beside draftgauge's loop in a live bench: plain, prompt lookup, and a draft model."""

from __future__ import annotations

import time
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from draftgauge.benching.arms import Arm, ArmRun
from draftgauge.models.engines.openvino import EXACT, FLOAT32, OpenvinoModel
from draftgauge.pair.loading import Pair

PLAIN_PIPELINE, LOOKUP_PIPELINE, DRAFT_PIPELINE = "genai-generate", "genai-prompt-lookup", "genai-assisted"
NGRAM = 3  # longest that is looked up, as GenAI's own examples have it


class GenaiBaseline:
    """``LLMPipeline.generate`` over the pair's folders, greedy, in the precision of the pair's engine.

    The pipeline is opened with the first prompt, and holds weights of its own beside the pair's.
    """

    def __init__(self, pair: Pair, kind: str, length: int) -> None:
        self.pair, self.kind = pair, kind
        self.drafting = {} if kind == PLAIN_PIPELINE else {"num_assistant_tokens": length}
        self.drafting |= {"max_ngram_size": NGRAM} if kind == LOOKUP_PIPELINE else {}
        self.pipeline: Any = None

    def open(self) -> Any:
        import openvino_genai as genai

        settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": torch.get_num_threads()}
        settings |= FLOAT32 if self.pair.target.spec.engine == EXACT else {}
        how: dict[str, Any] = {}
        if self.kind == LOOKUP_PIPELINE:
            how["prompt_lookup"] = True
        if self.kind == DRAFT_PIPELINE:
            how["draft_model"] = genai.draft_model(self.pair.draft_name, "CPU", **settings)
        return genai.LLMPipeline(self.pair.target_name, "CPU", **how, **settings)

    def run(self, prompt: list[int], max_new_tokens: int) -> ArmRun:
        """Decode one prompt. Timed are the tokens after those that came first."""
        import openvino
        import openvino_genai as genai

        class Clock(genai.StreamerBase):  # type: ignore[misc]
            first_at, first_tokens = 0.0, 0

            def write(self, tokens: Any) -> Any:
                if not self.first_tokens:
                    self.first_at, self.first_tokens = time.perf_counter(), np.size(tokens)
                return genai.StreamingStatus.RUNNING

            def end(self) -> None:
                """Nothing is buffered."""

        self.pipeline = self.pipeline or self.open()
        config = genai.GenerationConfig(max_new_tokens=max_new_tokens, do_sample=False)
        if ends := self.pair.end_tokens:
            config.eos_token_id, config.stop_token_ids = min(ends), set(ends)
        config.ignore_eos = not ends
        for name, value in self.drafting.items():
            setattr(config, name, value)
        ids, clock = np.array([prompt], np.int64), Clock()
        inputs = genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        started = time.perf_counter()
        tokens = list(self.pipeline.generate(inputs, config, clock).tokens[0])
        ended = time.perf_counter()
        timed = max(len(tokens) - clock.first_tokens, 0)
        # Of an output that is over with its first pass nothing is known.
        return ArmRun(tokens, 0, timed, ended - clock.first_at if timed else 0.0, clock.first_at - started)


def genai_arms(pair: Pair, max_new_tokens: int, gamma: int) -> list[Arm]:
    """The pipelines that run this pair; none where its target is no OpenVINO folder, or GenAI is not installed."""
    if not isinstance(pair.target, OpenvinoModel) or find_spec("openvino_genai") is None:
        return []
    kinds = [PLAIN_PIPELINE, LOOKUP_PIPELINE, *([DRAFT_PIPELINE] if isinstance(pair.draft, OpenvinoModel) else [])]
    return [
        Arm(
            kind if kind == PLAIN_PIPELINE else f"{kind}:{gamma}",
            partial(GenaiBaseline(pair, kind, gamma).run, max_new_tokens=max_new_tokens),
            outside=True,
        )
        for kind in kinds
    ]
