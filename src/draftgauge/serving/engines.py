"""Which settings an engine can run, and the flags and configuration files that set them."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.parts import COMPRESSED_BEFORE
from draftgauge.policies.ngrams import LEAST, LONGEST
from draftgauge.policies.spec import FIXED, PolicySpec, compared_policies
from draftgauge.traces.engine_costs import LOOPS
from draftgauge.traces.run import Manifest

PLAIN = "plain"
P_MIN = "p-min:"
LANGUAGE_MODEL, LOOKUP, EAGLE3, DFLASH, DSPARK = "language_model", "prompt_lookup", "eagle3", "dflash", "dspark"
MTP, PARD = "mtp", "pard"  # a head in the target's own checkpoint; a draft model that fills masks
STOPPED = (LANGUAGE_MODEL, MTP)  # kinds that llama.cpp stops at a confidence
GGUF = ".gguf"
P_MINS = (0.2, 0.4, 0.6, 0.8, 0.9)
PROPOSER = "draftgauge.integrations.vllm.Proposer"


@dataclass(frozen=True)
class Deployment:
    """What flags name."""

    target: str = "TARGET"  # model that verifies
    draft: str = "DRAFT"  # model that drafts; of "eagle3" and "dflash" the exported checkpoint
    # Kind of drafter, as a run's manifest has it, or the family of a checkpoint; None where the server drafts in a way
    # that is not known, which then stays: flags only change its length.
    drafter: str | None = LANGUAGE_MODEL
    gamma_max: int = 16  # longest draft
    costs: str | None = None  # file of the cost curve, for policies that weigh cost
    tokenizer: str | None = None  # of the target, where it is not its own
    proposer: bool = False  # the costs are of draftgauge's proposer, which then drafts at fixed lengths too
    options: tuple[str, ...] = ()  # of ``draftgauge generate``, for decoding as the run was recorded

    @property
    def drafts_with(self) -> str:
        """As ``--drafter`` takes it."""
        return LOOKUP if self.drafter == LOOKUP else self.draft


def deployment_of(manifest: Manifest, costs: Path) -> Deployment:
    """What flags name of a recorded run."""
    draft = "DRAFT" if manifest.draft is None else manifest.draft.source
    sources = (manifest.target.source, draft, manifest.drafter)
    return Deployment(*sources, manifest.gamma_max, str(costs), manifest.tokenizer)


@dataclass(frozen=True)
class Engine:
    """A serving engine, seen from its settings."""

    name: str  # as ``--engine`` has it
    flags: Callable[[str, Deployment], str]  # what to paste for a setting
    drafters: Mapping[str, str] = field(default_factory=dict)  # this and the next eleven: see engines.toml
    policies: bool = True
    p_min: bool = False
    exported: Sequence[str] = ()
    metrics: str = ""
    answers: Sequence[str] = ()
    started: str = ""
    version: str = ""
    source: str = ""
    runs: Sequence[str] = ()
    adaptive: Mapping[str, str] = field(default_factory=dict)
    synthetic: str = ""

    @property
    def loop(self) -> bool:
        """Whether draftgauge's own loop decodes in it, so that a run recorded there prices it."""
        return self.name in LOOPS

    def priced_by(self, recorded: str) -> bool:
        """Whether a step costs in it what was measured where a run was recorded, in the engine ``recorded``."""
        elsewhere = next((name for name in COMPRESSED_BEFORE if recorded.startswith(name)), "transformers")
        return self.name in ("draftgauge", elsewhere)

    def settings(self, gamma_max: int, own: Sequence[str] | None = (), kind: str | None = LANGUAGE_MODEL) -> list[str]:
        """The settings to try: plain, every length up to ``gamma_max``, and the rules that the engine can run with this
        kind of drafter. Rules are ``own``, by spec or fitted file, or those compared by default; no policies if None.
        """
        fixed = [f"{FIXED}{length}" for length in range(1, gamma_max + 1)]
        lengths = sorted({min(length, gamma_max) for length in (4, 8, 16)})
        stopping = [f"{P_MIN}{p},{n}" for n in lengths for p in P_MINS] if self.p_min and kind in STOPPED else []
        rules = list(own or compared_policies()) if self.policies and own is not None else []
        return [PLAIN, *fixed, *stopping, *(rule for rule in rules if not rule.startswith(FIXED))]


def engine_of(name: str) -> Engine:
    if name not in ENGINES:
        raise DraftgaugeError(f"unknown engine {name!r}: choose one of {', '.join(ENGINES)}")
    return ENGINES[name]


def setting_length(setting: str) -> int | None:
    """The length of ``plain`` (0) or ``fixed:N``; None of other settings."""
    return 0 if setting == PLAIN else PolicySpec.of(setting).length


def p_min_of(setting: str) -> tuple[float, int]:
    p, _, longest = setting.removeprefix(P_MIN).partition(",")
    return float(p), int(longest)


def by_batch(lengths: dict[int, int]) -> list[list[int]]:
    """vLLM's ``num_speculative_tokens_per_batch_size``: ``[first, last, tokens]`` for ranges of batch sizes.

    A length holds up to the next size measured; vLLM continues the last range to the most sequences that it runs.
    """
    sizes = sorted(lengths)
    ranges: list[list[int]] = []
    for size, following in zip(sizes, [*sizes[1:], sizes[-1] + 1], strict=True):
        if ranges and ranges[-1][2] == lengths[size]:
            ranges[-1][1] = following - 1
        else:
            ranges.append([size if ranges else 1, following - 1, lengths[size]])
    return ranges


def settings_document(engine: Engine, setting: str, lengths: dict[int, int], deployment: Deployment) -> dict[str, Any]:
    """The engine's own settings as JSON: what its configuration file or option takes.

    ``setting`` is what is advised for the smallest batch, ``lengths`` the best fixed length by batch size.
    """
    length = setting_length(setting)
    if engine.name == "vllm":
        longest = max(lengths.values())
        if length is None or len(lengths) == 1 or longest == 0 or _is_custom(f"{FIXED}{longest}", deployment):
            return _vllm_config(setting, deployment)
        config = _vllm_config(f"{FIXED}{longest}", deployment)  # no range goes beyond it
        return config | {"num_speculative_tokens_per_batch_size": by_batch(lengths)}
    if engine.name == "sglang":
        steps = sorted({value for value in lengths.values() if value} | ({length} if length else set()))
        return {"candidate_steps": steps} if steps else {}
    return _llama_settings(setting, deployment)


def _draftgauge(setting: str, deployment: Deployment) -> str:
    words = ["draftgauge", "generate", "PROMPT", "--target", deployment.target]
    if setting != PLAIN:
        words += ["--drafter", deployment.drafts_with]
    words += [*_tokenizer("--tokenizer", deployment), *deployment.options, "--policy", setting]
    longest = _longest(setting, deployment)
    return shlex.join(words if longest is None else [*words, "--gamma-max", str(longest)])


def _longest(setting: str, deployment: Deployment) -> int | None:
    """The longest draft, where a setting needs another than is usual: rules are fitted and priced for one."""
    length = setting_length(setting)
    needed = deployment.gamma_max if length is None else max(length, Deployment.gamma_max)
    return None if needed == Deployment.gamma_max else needed


def _tokenizer(option: str, deployment: Deployment) -> list[str]:
    return [] if deployment.tokenizer is None else [option, deployment.tokenizer]


def _transformers(setting: str, deployment: Deployment) -> str:
    if setting == PLAIN:
        return "model.generate(**inputs)"
    longest = _longest(setting, deployment)
    options = f"policy={setting!r}" if longest is None else f"policy={setting!r}, gamma_max={longest}"
    once = f"speculation = draftgauge.speculative({deployment.drafts_with!r}, {options})"  # which loads the draft
    return f"{once}\nmodel.generate(**inputs, custom_generate=speculation)"


def _gguf(setting: str, deployment: Deployment) -> str:
    target, options = gguf_or(deployment.target, "TARGET"), deployment.options
    draft = deployment.draft if target == deployment.target else gguf_or(deployment.draft, "DRAFT")
    if "--compression" in options:  # of the recorded target; a GGUF file is quantised as it is
        at = options.index("--compression")
        options = (*options[:at], *options[at + 2 :])
    return _draftgauge(setting, replace(deployment, target=target, draft=draft, options=options))


def gguf_or(source: str, name: str) -> str:
    """A GGUF file, or a name in place of a model that is none yet."""
    return source if source.endswith(GGUF) else f"{name}{GGUF}"


def _llama_settings(setting: str, deployment: Deployment) -> dict[str, Any]:
    if setting == PLAIN:
        return {}
    length = setting_length(setting)
    if deployment.drafter is None:
        return {"spec-draft-n-max": length}
    kind = {"spec-type": ENGINES["llama-server"].drafters[deployment.drafter]}
    if deployment.drafter == LOOKUP:
        # A draft shorter than the n-gram is dropped there, so that size-m 1 behind size-n 2 would never draft.
        sizes = {"spec-ngram-simple-size-n": min(LEAST, length or LEAST), "spec-ngram-simple-size-m": length}
        return kind | sizes
    if deployment.drafter not in STOPPED:
        return kind | {"spec-draft-n-max": length}
    p_min, longest = p_min_of(setting) if length is None else (0.0, length)
    return kind | {"spec-draft-n-max": longest, "spec-draft-p-min": p_min}


def _llama_server(setting: str, deployment: Deployment) -> str:
    options = _llama_settings(setting, deployment)
    words = [] if deployment.drafter is None else ["llama-server", "--model", gguf_or(deployment.target, "TARGET")]
    convert, draft = "", gguf_or(deployment.draft, "DRAFT")
    if options and deployment.drafter not in (None, LOOKUP, MTP):
        words += ["--spec-draft-model", draft]
        if deployment.drafter != LANGUAGE_MODEL and draft != deployment.draft:
            source = ["python", "convert_hf_to_gguf.py", deployment.draft, "--target-model-dir", deployment.target]
            convert = f"{shlex.join([*source, '--outfile', draft])} && "
    return convert + shlex.join([*words, *(str(word) for name in options for word in (f"--{name}", options[name]))])


def _is_custom(setting: str, deployment: Deployment) -> bool:
    return deployment.drafter is not None and (deployment.proposer or PolicySpec.of(setting).length is None)


def _vllm_config(setting: str, deployment: Deployment) -> dict[str, Any]:
    length = setting_length(setting)
    if length == 0:
        return {}
    tokens = {"num_speculative_tokens": length or deployment.gamma_max}
    if deployment.drafter is None:
        return tokens
    if _is_custom(setting, deployment):
        return {"method": "custom_class", "model": PROPOSER} | tokens
    if deployment.drafter == LOOKUP:  # vLLM's own takes the first occurrence of the longest n-gram too
        return {"method": "ngram", "prompt_lookup_max": LONGEST, "prompt_lookup_min": LEAST} | tokens
    method = {"method": ENGINES["vllm"].drafters[deployment.drafter]}
    method |= {} if deployment.drafter == MTP else {"model": deployment.draft}
    return method | ({"parallel_drafting": True} if deployment.drafter == PARD else {}) | tokens


def _vllm(setting: str, deployment: Deployment) -> str:
    config = _vllm_config(setting, deployment)
    if deployment.drafter is None:
        return json.dumps(config)[1:-1]
    words = ["vllm", "serve", deployment.target, *_tokenizer("--tokenizer", deployment)]
    if config:
        words += ["--speculative-config", json.dumps(config)]
    if config.get("method") == "custom_class":
        options: dict[str, Any] = {"drafter": deployment.drafts_with, "policy": setting}
        options |= {"costs": deployment.costs} if deployment.costs else {}
        words += ["--additional-config", json.dumps({"draftgauge": options})]
    return shlex.join(words)


def _sglang(setting: str, deployment: Deployment) -> str:
    words = []
    length, kind = setting_length(setting), deployment.drafter
    if kind is not None:
        words = ["python", "-m", "sglang.launch_server", "--model-path", deployment.target]
        words += _tokenizer("--tokenizer-path", deployment)
    if length and kind is not None:
        words += ["--speculative-algorithm", ENGINES["sglang"].drafters[kind]]
        words += [] if kind in (LOOKUP, MTP) else ["--speculative-draft-model-path", deployment.draft]
    if length:
        chain = ["--speculative-num-steps", str(length), "--speculative-eagle-topk", "1"]
        own = {LOOKUP: ["--speculative-ngram-max-bfs-breadth", "1"], DFLASH: []}
        own[DSPARK] = ["--speculative-dspark-block-size", str(length)]
        words += [*own.get(kind or "", chain), "--speculative-num-draft-tokens", str(length + 1)]
    return shlex.join(words)


_FLAGS = {"draftgauge": _draftgauge, "transformers": _transformers, "gguf": _gguf}
_FLAGS |= {"llama-server": _llama_server, "vllm": _vllm, "sglang": _sglang}
_TABLE = tomllib.loads(files(__package__).joinpath("engines.toml").read_text("utf-8"))
ENGINES = {name: Engine(name, flags, **_TABLE.get(name, {})) for name, flags in _FLAGS.items()}
