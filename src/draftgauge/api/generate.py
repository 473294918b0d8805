"""One output, with or without speculation, streamed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from draftgauge.api.datastore import open_store, texts_of
from draftgauge.core.errors import DraftgaugeError, PromptError, warn
from draftgauge.core.parts import held_as
from draftgauge.core.progress import Progress, silent
from draftgauge.core.prompts import Prompt
from draftgauge.core.verb import verb
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.settings import DecodingSettings, Generation, Origin, check_request
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.judging.splits import warn_of_other_pairs
from draftgauge.models.tokenizer import IncrementalDecoder, answers_warning, vocabulary_digest
from draftgauge.pair.costs import pair_costs
from draftgauge.pair.loading import Pair, load_pair, refuse_beside_pair, sampling_of, target_of
from draftgauge.pair.prompts import log
from draftgauge.policies.base import Policy
from draftgauge.policies.ngrams import with_stored
from draftgauge.policies.spec import read_policies, with_objects
from draftgauge.requests import PLAIN, GenerateRequest
from draftgauge.traces.datastore import grow, stored_output

NO_MODEL = "prompt_lookup"  # plain decoding loads no draft
OnText = Callable[[str, str], None]


@verb(GenerateRequest, loaded=Pair)
def generate(
    request: GenerateRequest,
    *,
    pair: Pair | None = None,
    objects: Mapping[str, Policy] | None = None,
    on_text: OnText | None = None,
    progress: Progress = silent,
) -> Generation:
    """Decode one prompt: ``.text``, ``.tokens``, and ``.steps``, how they came about.

    The output is that of plain decoding: the same tokens when greedy, the same distribution when sampled.
    ``generate(pair, "a prompt", policy="fixed:4")`` decodes with a pair that is loaded already. The default policy
    weighs what a step costs: for a pair that is new to this machine that is measured first, in about ``cost_seconds``.

    Args:
        request: the prompt, as text or as token ids taken as they are, and how to decode it.
        objects: policies of your own by name; the request's ``policy`` may be one of them. A copy decodes.
        on_text: told each new piece of text and how it came: accepted, text (looked up in the text and accepted),
            corrected, bonus or plain.
        progress: told (what, done, total) while the pair's costs are measured: once a machine, for a policy that weighs
            them.

    Raises:
        DraftgaugeError: for unknown policies, prompts that are empty or too long, settings out of range, or a pair that
            is given twice.
    """
    if pair is not None:
        refuse_beside_pair(request)
    policy = with_objects({}, objects or {}).get(request.policy)
    plain = policy is None and request.policy == PLAIN
    if plain and request.datastore is not None:
        raise DraftgaugeError("plain decoding looks nothing up: leave out the datastore, or name a policy")
    named = read_policies([request.policy] if policy is None and not plain else [])
    longest = request.drafts.gamma_max
    settings = DecodingSettings(request.output.max_new_tokens, stop_strings=request.stop, gamma_max=longest)
    for each in named:
        if not each.weighs_cost:
            each.make(longest, None)  # a mistake shows before models are loaded
    spec = request.pair
    if plain and pair is None:
        spec = replace(spec, target=target_of(spec), drafter=NO_MODEL)
    pair = pair or load_pair(spec)
    store = None if request.datastore is None else open_store(request.datastore, vocabulary_digest(pair.tokenizer))
    sampling = sampling_of(request.sampling, pair.target_name)
    generator = pair.generator(sampling, request.randomness.seed)
    settings = replace(settings, sampling=sampling, end_tokens=pair.end_tokens, detokenize=pair.tokenizer.decode)
    tokens = _encode(pair, request)
    check_request(pair.target.spec, tokens, settings, generator)  # before costs are measured
    stream = TokenStream(pair, on_text) if on_text is not None else None
    if plain:
        result = plain_decode(pair.target, tokens, settings, generator, stream)
    else:
        warn_of_other_pairs(named, pair.fingerprints() if any(each.fitted for each in named) else {})
        for each in named:
            costs = pair_costs(pair, request.costs, longest, sampling, progress) if each.weighs_cost else None
            policy = each.make(pair.longest(longest), costs, held_as(pair.compression, pair.target.spec.engine))
        assert policy is not None
        if store is not None:
            with_stored([policy], texts_of(store))
        drafter = pair.drafter(sampling, generator)
        result = speculative_decode(pair.target, drafter, policy, tokens, settings, generator, stream)
    if stream is not None:
        stream.finish()
    if store is not None and request.datastore is not None:  # other processes may have added to the file meanwhile
        grow(request.datastore, store.about, [stored_output(tokens, result.tokens)])
    if said := answers_warning([result.tokens], pair.end_tokens):
        warn(said)
    result.text = pair.tokenizer.decode(result.tokens, skip_special_tokens=True)
    return result


def _encode(pair: Pair, request: GenerateRequest) -> list[int]:
    """Token ids of the prompt; ids are taken as they are."""
    prompt = request.prompt
    if not isinstance(prompt, str):
        last = pair.target.spec.vocabulary - 1
        if unknown := [token for token in prompt if not 0 <= token <= last]:
            raise PromptError(f"the prompt holds the token {unknown[0]}; the target's are 0 to {last}")
        return list(prompt)
    if not prompt.strip():
        raise PromptError("the prompt is empty: give it some text")
    tokens = pair.encode(Prompt(0, "0", "", "", text=prompt), request.conversation.rendering(request.chat))
    log.info("the prompt as the model reads it: %r", pair.tokenizer.decode(tokens))
    return tokens


class TokenStream:
    """Hands out committed tokens as text, each piece with how its last token came."""

    def __init__(self, pair: Pair, on_text: OnText) -> None:
        self._pieces = IncrementalDecoder(pair.tokenizer)
        self._on_text = on_text
        self._origin = "plain"

    def __call__(self, tokens: list[int], origins: list[Origin]) -> None:
        for token, self._origin in zip(tokens, origins, strict=True):
            if piece := self._pieces.push(token):
                self._on_text(piece, self._origin)

    def finish(self) -> None:
        if piece := self._pieces.finish():
            self._on_text(piece, self._origin)
