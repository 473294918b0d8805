"""Why a drafter is slow or hardly accepted: the evidence on a pair, a recorded run or an engine's counters."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftgauge.checkup.checks import CHECKPOINT, MTP, UNKNOWN, Evidence, examine, in_order, row_of
from draftgauge.core.config import given_settings, settings_of
from draftgauge.core.errors import DraftgaugeError, ModelError, missing_library, warn
from draftgauge.core.progress import Progress, silent
from draftgauge.core.prompts import Prompt
from draftgauge.core.verb import verb
from draftgauge.requests import DeviceSpec, DoctorRequest, LoadSpec, OutputSpec, ProfileRequest, PromptSpec
from draftgauge.serving.counters import read_counts
from draftgauge.serving.parity import Plan, Servers, compare
from draftgauge.traces.engine_costs import read_costs
from draftgauge.traces.manifest import COSTS_NAME
from draftgauge.traces.run import Run

PROMPTS = 20  # asked of two servers


@verb(DoctorRequest)
def doctor(request: DoctorRequest, *, progress: Progress = silent) -> list[dict[str, Any]]:
    """Look for the usual reasons why a drafter is hardly accepted or speculation is no faster.

    A pair's files are compared first; if nothing is wrong with them, it is recorded on the prompts, and the run is
    looked at. Of a recorded run, its files where they are still there. Of an engine, only its counters; with
    ``against`` its answers beside those of a second server.

    Returns:
        Rows as of :func:`draftgauge.checkup.checks.examine`: ``check``, ``status`` ("wrong", "suspect", "well",
        "unknown"), ``what``, ``evidence`` and ``remedy``.

    Raises:
        DraftgaugeError: for models, prompts, a run or a server that cannot be used.
    """
    if request.url is not None and request.against is not None:
        asked = (entry.name for part in (PromptSpec, OutputSpec) for entry in settings_of(part))
        _refuse_others(request, request.url, *asked, "url", "server", "against", "samples", "temperature")
        return _parity(request, request.url, request.against, progress)
    if request.url is not None:
        _refuse_others(request, request.url, "url", "server")
        return examine(Evidence(counts=read_counts(request.server or "vllm", request.url)))
    if request.folder is not None:
        loading = [entry.name for part in (DeviceSpec, LoadSpec) for entry in settings_of(part)]
        _refuse_others(request, str(request.folder), "folder", "costs_file", "server", *loading)
        return examine(_of_run(request, Run.load(request.folder), None))
    from draftgauge.api.profile import profile
    from draftgauge.checkup.files import of_files
    from draftgauge.drafters.base import choose_drafter
    from draftgauge.pair.loading import target_of

    evidence = of_files(request.pair, target_of(request.pair), *choose_drafter(request.pair.drafter))
    rows = examine(evidence)
    if any(row["status"] == "wrong" for row in rows):
        return rows
    with tempfile.TemporaryDirectory(prefix="draftgauge-doctor-") as scratch:
        run = Run(request.out or Path(scratch))
        parts = ("pair", "prompts", "output", "drafts", "sampling", "randomness", "costs")
        recording = ProfileRequest(out=run.folder, **{part: getattr(request, part) for part in parts})
        profile(recording, progress=progress)
        return examine(_of_run(request, run, evidence))


def _parity(request: DoctorRequest, url: str, against: str, progress: Progress) -> list[dict[str, Any]]:
    """A server's answers beside those of one without drafting, and its counters."""
    from draftgauge.pair.prompts import choose_prompts

    given = given_settings(request).intersection(("limit", "per_task"))
    _, prompts = choose_prompts(request.prompts if given else replace(request.prompts, per_task=None, limit=PROMPTS))
    servers = Servers(request.server or "vllm", url, against)
    asked = [_asked(prompt, request.prompts.chat) for prompt in prompts]
    plan = Plan(request.output.max_new_tokens, request.sampling.temperature or 1.0, request.samples)
    rows = [row_of(*found) for found in compare(servers, asked, plan, progress)]
    try:
        return in_order(rows + examine(Evidence(counts=read_counts(servers.engine, url))))
    except DraftgaugeError as error:
        warn(f"counters are not looked at: {error}")
        return in_order(rows)


def _asked(prompt: Prompt, chat: bool | None) -> dict[str, Any]:
    text = prompt.text or (prompt.turns[0] if prompt.turns else "")
    if text and chat is False:
        return {"prompt": text}
    messages = [{"role": m.role, "content": m.content, **m.more} for m in prompt.messages]
    tools = {key: value for key, value in prompt.template_args.items() if key == "tools"}
    others = {key: value for key, value in prompt.template_args.items() if key not in tools}
    kept = tools | ({"chat_template_kwargs": others} if others else {})
    return {"messages": messages or [{"role": "user", "content": text}], "add_generation_prompt": True, **kept}


def _refuse_others(request: DoctorRequest, looked_at: str, *used: str) -> None:
    others = given_settings(request).difference(used)
    options = {entry.name: entry.option for entry in settings_of(DoctorRequest)} | {"folder": "the run"}
    if idle := [option for name, option in options.items() if name in others]:
        raise DraftgaugeError(f"{looked_at} is looked at as it is: leave out {', '.join(idle)}, or it")


def _of_run(request: DoctorRequest, run: Run, of_files: Evidence | None) -> Evidence:
    manifest, trace = run.manifest, run.trace
    spec = replace(request.pair, target=manifest.target.source, drafter=manifest.drafts_with)
    spec = replace(spec, loading=replace(spec.loading, tokenizer=manifest.tokenizer or spec.loading.tokenizer))
    if of_files is None:
        try:
            from draftgauge.checkup.files import of_recorded

            of_files = of_recorded(spec, manifest)
        except (DraftgaugeError, ModuleNotFoundError) as error:  # models that are no longer there, or their libraries
            said = missing_library(error.name) if isinstance(error, ModuleNotFoundError) else error
            warn(f"the files of the models are not looked at: {said or error}")
            of_files = Evidence(manifest.target.source, manifest.drafter)
    costs = UNKNOWN
    if request.costs_file is not None:
        curves = read_costs(request.costs_file, request.server or "draftgauge")
        costs = curves[min(curves)]
    elif (run.folder / COSTS_NAME).is_file():
        costs = run.costs
    held = UNKNOWN if of_files.compression is None else (manifest.target.compression, of_files.compression[1])
    evidence = replace(of_files, trace=trace, costs=costs, compression=held)
    if manifest.drafter in (CHECKPOINT, MTP) and trace.sampled is None and evidence.tokenizer is not None:
        from draftgauge.checkup.files import layout_rates, mtp_rates

        with suppress(ModelError):  # a target that does not fit here
            if manifest.drafter == CHECKPOINT:
                evidence = replace(evidence, layout_rates=layout_rates(manifest, request.pair, trace))
            else:
                evidence = replace(evidence, mtp_rates=mtp_rates(manifest, request.pair, trace))
    return evidence
