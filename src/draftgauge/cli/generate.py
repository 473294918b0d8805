"""``draftgauge generate``: one output, streamed, with the drafts shown if asked for."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.text import Text

from draftgauge.cli import options as o
from draftgauge.cli.console import console, errors, friendly_errors, save_json

STYLES = {"accepted": "green", "corrected": "bold red", "bonus": "bold cyan", "plain": ""}


def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; '-' reads it from standard input.")],
    target: o.Target = "reference",
    draft: o.Draft = "reference",
    drafter: o.DrafterKind = "language_model",
    compression: o.Compression = "none",
    policy: Annotated[
        str, typer.Option("--policy", "-p", help="How far to draft, e.g. fixed:4; 'plain' decodes without speculation.")
    ] = "fixed:4",
    max_new_tokens: o.MaxNewTokens = 128,
    temperature: Annotated[float, typer.Option(help="0 decodes greedily.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Sample from the k most likely tokens; 0 is off.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Sample from the smallest set with this much probability; 1 is off.")
    ] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="End the output after this text; may be repeated.")] = None,
    chat: Annotated[
        bool | None, typer.Option("--chat/--raw", help="Use the chat template or take the prompt as it is.")
    ] = None,
    show_drafts: Annotated[bool, typer.Option("--show-drafts", help="Colour the text by how each token came.")] = False,
    device: o.Device = None,
    engine: o.Engine = "auto",
    seed: o.Seed = 0,
    trust_remote_code: o.TrustRemoteCode = False,
    json: o.Json = None,
) -> None:
    """Decode a prompt with speculation and stream the text."""
    from draftgauge.api.generate import generate as run_generate
    from draftgauge.api.pair import load_pair

    def show(text: str, origin: str) -> None:
        console.print(Text(text, style=STYLES[origin] if show_drafts else ""), end="", soft_wrap=True)

    with friendly_errors():
        pair = load_pair(target, draft, compression, drafter, device, engine, trust_remote_code)
        _, result = run_generate(
            pair,
            sys.stdin.read() if prompt == "-" else prompt,
            None if policy == "plain" else policy,
            chat=chat,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            stop=tuple(stop or ()),
            seed=seed,
            on_text=show,
        )
        console.print()
        if show_drafts:
            legend = "  ".join(f"[{style}]{name}[/]" if style else name for name, style in STYLES.items())
            errors.print(legend)
        drafted, accepted = sum(s.drafted for s in result.steps), sum(s.accepted for s in result.steps)
        errors.print(
            f"{len(result.tokens)} tokens in {len(result.steps)} steps ({result.tokens_per_step:.2f} a step), "
            f"{accepted} of {drafted} drafted tokens accepted, {result.tokens_per_second:.0f} tokens/s",
            highlight=False,
        )
        row = {
            "policy": policy,
            "compression": compression,
            "tokens": len(result.tokens),
            "steps": len(result.steps),
            "tokens_per_step": result.tokens_per_step,
            "drafted": drafted,
            "accepted": accepted,
            "tokens_per_second": result.tokens_per_second,
            "prefill_seconds": result.prefill_seconds,
            "finish": result.finish,
        }
        save_json(json, [row])
