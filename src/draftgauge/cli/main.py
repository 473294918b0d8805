"""The command line: one short file a verb, each registered here."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from draftgauge.cli import (
    bench,
    demo,
    evaluate,
    fit,
    generate,
    profile,
    reference,
    replay,
    report,
    reproduce,
    study,
    train,
)

app = typer.Typer(
    name="draftgauge",
    help="Measure, replay and run speculative decoding: which drafter, how many tokens, and is it worth it on your model?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("profile")(profile.profile)
app.command("fit")(fit.fit)
app.command("replay")(replay.replay)
app.command("bench")(bench.bench)
app.command("generate")(generate.generate)
app.command("report")(report.report)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.add_typer(study.app, name="study")
app.add_typer(reference.app, name="reference")
app.add_typer(reproduce.app, name="reproduce")


def _version(value: bool) -> None:
    if value:
        typer.echo(version("draftgauge"))
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options that come before the verb."""


def run() -> None:
    """Entry point of the ``draftgauge`` command."""
    app()
