"""draftgauge inside vLLM (0.30 or later): any of its drafters that needs no target state, under any of its policies.

Drafts count as one-hot distributions, so vLLM's rejection sampler keeps outputs as they are. It hands over no request
ids, so requests are identified by their text. docs/vllm.md has the flags.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from draftgauge.core.config import from_mapping
from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.core.parts import drafter_for
from draftgauge.core.signals import SignalName
from draftgauge.drafters.base import Draft, Drafting, LoadOptions, choose_drafter, completed, drafter_kind
from draftgauge.drafters.language_model import LanguageModelDrafter
from draftgauge.drafters.rows import Asked, EachRow, LanguageModelRows, RowDrafter
from draftgauge.integrations.vllm_guard import check_version, fix_sampling
from draftgauge.models.base import CachedModel
from draftgauge.models.device import half_precision
from draftgauge.models.engines.lean import LeanModel
from draftgauge.models.loading import load_tokenizer, wrap
from draftgauge.pair.loading import Pair
from draftgauge.policies.base import DropsLast, Extends, Policy, Signal, Step, asks_after_each_token, begin, reads_of
from draftgauge.policies.spec import make_policy
from draftgauge.traces.engine_costs import read_costs


@dataclass(frozen=True)
class ProposerOptions:
    """What ``--additional-config '{"draftgauge": {...}}'`` takes."""

    drafter: str | None = None  # a draft model's id or folder, 'reference', or 'lookup'
    policy: str | None = None  # by spec or fitted file; always ``num_speculative_tokens`` if left out
    costs: Path | None = None  # JSON of what a step costs here, for policies that weigh cost
    device: str | None = None  # of the drafter; that of vLLM if left out
    costs_out: Path = Path("vllm-costs.json")  # what CostProbe measured
    draft: str | None = None  # former name of ``drafter``, where a model drafts

    def __post_init__(self) -> None:
        if self.draft is not None:
            object.__setattr__(self, "drafter", drafter_for(self.draft, self.drafter))


@dataclass(eq=False)
class Request:
    """One request of the last batch."""

    text: bytes  # its token ids as vLLM's bytes, so that comparing long texts takes no time
    length: int  # of the text in tokens
    last: int  # token
    row: int  # its number in the drafter
    policy: Policy
    draft: Draft = field(default_factory=lambda: Draft([]))  # what was last proposed for it
    asked: int = 0  # drafted tokens of the present step after which the policy was asked whether to go on

    def keep_drafting(self, signal: Signal) -> bool:
        self.asked += 1
        return self.policy.keep_drafting(signal)


class Proposer:
    """A proposer for vLLM's ``custom_class``; ``requests`` are those of the last batch whose prompts were read."""

    def __init__(self, vllm_config: Any) -> None:
        """Load the drafter for vLLM's ``VllmConfig``."""
        check_version()
        fix_sampling()
        given = (vllm_config.additional_config or {}).get("draftgauge", {})
        self.options = from_mapping(ProposerOptions, given, "additional_config: draftgauge")
        self.longest = int(vllm_config.speculative_config.num_speculative_tokens)
        self._context = int(vllm_config.model_config.max_model_len)
        curves = {} if self.options.costs is None else read_costs(self.options.costs, "vllm", own=True)
        self._costs = curves[min(curves)] if curves else None
        ends = getattr(vllm_config.model_config.hf_config, "eos_token_id", None)
        self._end_tokens = frozenset([ends] if isinstance(ends, int) else ends or [])
        self._policies = [self._new_policy()]
        self._reads = reads_of(self._policies[0])
        self._asks = asks_after_each_token(self._reads)
        with _own_defaults():
            self._drafter = _row_drafter(self.options, vllm_config, self._end_tokens)
        self.requests: list[Request] = []

    def load_model(self, *_: Any, **__: Any) -> None:
        """Nothing of the target is read."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Sequence[int],
        token_ids_cpu: Any,
        slot_mappings: Any = None,
        **_: Any,
    ) -> list[list[int]]:
        """A draft for each request of a batch, possibly empty.

        Args:
            sampled_token_ids: of each request the tokens that the last step committed; none while its prompt is read.
            num_tokens_no_spec: ``[requests]`` length of each text.
            token_ids_cpu: ``[requests, longest text]`` the texts.
        """
        with _own_defaults(), torch.inference_mode():
            present = self._follow(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
            asked = {r.row: self.ask(r) for r in present if r is not None and self.room(r) > 0}
            drafts = self._drafter.propose({row: each for row, each in asked.items() if each.limit > 0})
            for request in self.requests:
                draft = drafts.get(request.row, Draft([]))
                request.draft = self.completed(request, draft) if request.row in asked else draft
        return [[] if request is None else list(request.draft.tokens) for request in present]

    def _follow(self, sampled: Sequence[Sequence[int]], lengths: Sequence[int], texts: Any) -> list[Request | None]:
        """The requests of this batch in its order, with what was committed; None while a prompt is read.

        Requests are found again by their texts, those of one text in their order. Those that are gone are dropped.
        """
        by_length: dict[int, list[Request]] = {}
        for request in self.requests:
            by_length.setdefault(request.length, []).append(request)
        seen: list[tuple[list[int], NDArray[np.int32], Request | None]] = []
        for row, each, length in zip(np.asarray(texts), sampled, lengths, strict=False):
            committed, tokens = [int(token) for token in each], row[: int(length)]
            before = len(tokens) - len(committed)
            candidates = by_length.get(before, []) if committed else []
            text = tokens[:before].tobytes() if candidates else b""
            known = next((request for request in candidates if request.text == text), None)
            if known is not None:
                candidates.remove(known)
            seen.append((committed, tokens, known))
        staying = {id(known) for _, _, known in seen}
        for request in self.requests:
            if id(request) not in staying:
                self._drafter.close(request.row)
                self._policies.append(request.policy)
        present = [self._updated(*each) if each[0] else None for each in seen]
        self.requests = [request for request in present if request is not None]
        return present

    def _updated(self, committed: list[int], tokens: NDArray[np.int32], request: Request | None) -> Request:
        """The request that had this text before these tokens, or a new one."""
        text = tokens.tolist()
        if request is None:
            policy = self._policies.pop() if self._policies else self._new_policy()
            begin(policy, text)
            return Request(tokens.tobytes(), len(text), text[-1], self._drafter.open(text), policy)
        draft = request.draft
        most = min(len(draft.tokens), len(committed) - 1)
        accepted = next((n for n in range(most) if draft.tokens[n] != committed[n]), most)
        self._drafter.commit(request.row, min(accepted, draft.kept), committed)
        shown = committed if SignalName.TEXT in self._reads else ()
        how = draft.signals, float("nan"), shown, draft.appended, draft.dropped
        request.policy.observe(Step(draft.drafted, accepted, len(committed), *how))
        request.text, request.length, request.last = tokens.tobytes(), len(text), text[-1]
        return request

    def ask(self, request: Request) -> Asked:
        limit, request.asked = min(request.policy.limit(), self.room(request)), 0
        return Asked(limit, request.keep_drafting if self._asks else None, self._reads)

    def completed(self, request: Request, draft: Draft) -> Draft:
        policy = request.policy
        if not isinstance(policy, (Extends, DropsLast)):
            return draft
        return completed(policy, draft, request.asked, self.room(request))

    def room(self, request: Request) -> int:
        """Tokens that may be drafted: none after an end token, leaving room for the target's own token."""
        if request.last in self._end_tokens:
            return 0
        return min(self.longest, self._context - request.length - 1)

    def _new_policy(self) -> Policy:
        policy = make_policy(self.options.policy or f"fixed:{self.longest}", self.longest, self._costs)
        if SignalName.TARGET_ENTROPY in reads_of(policy):
            raise DraftgaugeError(
                f"policy {self.options.policy} reads the target's entropy, which vLLM does not hand over"
            )
        return policy


def _row_drafter(options: ProposerOptions, vllm_config: Any, end_tokens: frozenset[int]) -> RowDrafter:
    """The drafter, checked against the target's tokenizer."""
    if options.drafter is None:
        raise DraftgaugeError("name what drafts: additional_config's draftgauge needs a drafter, a model or 'lookup'")
    kind, model_config = drafter_kind(choose_drafter(options.drafter)[0]), vllm_config.model_config
    if kind.self_describing:
        raise DraftgaugeError(
            f"{options.drafter} reads the target's states, which vLLM does not hand over: let vLLM draft with it "
            "(method eagle3 or dflash; `draftgauge export` for a trained one), or take a draft model or lookup"
        )
    device = options.device or str(getattr(vllm_config.device_config, "device", "cpu"))
    named, nothing = model_config.tokenizer, cast(CachedModel, None)  # what drafts here reads no target
    tokenizer = load_tokenizer(str(named)) if named else None
    loading = LoadOptions(half_precision(model_config.dtype), device)
    pair = Pair.of(lambda: nothing, options.drafter, tokenizer, loading)
    if pair.draft is None:
        return EachRow(lambda: pair.draft_source.drafter(nothing, None, Drafting(end_tokens)))
    model, module, vocabulary = pair.draft, pair.draft.module, int(model_config.get_vocab_size())
    if module is None:
        raise ModelError("a GGUF or OpenVINO draft holds one text at a time, and vLLM decodes several: give its folder")
    if isinstance(model, LeanModel):  # also of fixed shapes, which hold one text
        lean = model if type(model) is LeanModel else LeanModel(module)
        return LanguageModelRows(lean, end_tokens, vocabulary)
    return EachRow(lambda: LanguageModelDrafter(wrap(module, "modules"), end_tokens, None, None, vocabulary))


@contextmanager
def _own_defaults() -> Iterator[None]:
    """float32 and the CPU as torch's defaults, which vLLM changes while it loads. Only where they are others: under
    ``torch.device`` every operation goes through Python, and small models take twice the time."""
    probe = torch.empty(0)
    if probe.dtype == torch.float32 and probe.device.type == "cpu":
        yield
        return
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(dtype)
