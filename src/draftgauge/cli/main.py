"""The command line: one short file a verb, each registered here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version

from cyclopts import App, CycloptsError, MissingArgumentError, UnknownOptionError, UnusedCliTokensError

from draftgauge.cli import (
    advise,
    bench,
    datastore,
    demo,
    diagnose,
    doctor,
    evaluate,
    export,
    fit,
    generate,
    profile,
    rank,
    replay,
    report,
    study,
    train,
)
from draftgauge.cli.console import EXIT_USAGE, console, errors, fail, friendly_warnings, interruptible
from draftgauge.cli.derive import TEXT, add_verb, as_words

KEPT = "Everything finished so far is kept: run the same command again to go on."
NOTHING = "Nothing was written."
LAST = 100  # in the help: verbs that have verbs of their own


def make_app() -> App:
    """All verbs."""
    app = App(
        name="draftgauge",
        help="Measure, replay and run speculative decoding: "
        "which drafter, how many tokens, and is it worth it on your model?",
        version=lambda: version("draftgauge"),
        help_flags=["--help", "-h"],
        help_format="plaintext",
        console=console,
        error_console=errors,
    )
    add_verb(app, "demo", demo.demo, KEPT)
    add_verb(app, "profile", profile.profile, KEPT)
    add_verb(app, "rank", rank.rank, KEPT)
    add_verb(app, "doctor", doctor.doctor, NOTHING)
    add_verb(app, "fit", fit.fit, NOTHING)
    add_verb(app, "replay", replay.replay, NOTHING)
    add_verb(app, "bench", bench.bench, NOTHING)
    add_verb(app, "bench-servers", bench.bench_servers, NOTHING)
    add_verb(app, "advise", advise.advise, NOTHING)
    add_verb(app, "generate", generate.generate)
    add_verb(app, "report", report.report, NOTHING)
    add_verb(
        app, "train", train.train, "Everything up to the last checkpoint is kept: run the same command again to go on."
    )
    add_verb(app, "evaluate", evaluate.evaluate, NOTHING)
    add_verb(app, "diagnose", diagnose.diagnose, NOTHING)
    add_verb(app, "export", export.export, NOTHING)
    stores = App(name="datastore", sort_key=LAST, help="Earlier outputs that tokens may be looked up in.")
    add_verb(stores, "build", datastore.build, NOTHING)
    studies = App(name="study", sort_key=LAST, help="The papers' comparisons as runnable studies.")
    add_verb(studies, "kvshot", study.kvshot, "Finished cells are kept: the same command goes on from there.")
    add_verb(studies, "speckv", study.speckv, NOTHING)
    for group in (stores, studies):
        app.command(group)
    return app


def run(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the ``draftgauge`` command; returns the exit code."""
    words = as_words(sys.argv[1:] if arguments is None else arguments)
    app = make_app()
    try:
        command, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    except UnusedCliTokensError as error:
        unknown = " ".join(error.unused_tokens or []).replace(TEXT, "")
        fail(f"unknown argument {unknown!r}: draftgauge VERB --help lists the options")
        return EXIT_USAGE
    except CycloptsError as error:
        if isinstance(error, MissingArgumentError) and error.argument is not None and error.keyword is None:
            verb = " ".join(("draftgauge", *(error.command_chain or ())))
            fail(f"{error.argument.name} is required: {verb} --help lists the options")
            return EXIT_USAGE
        hint = ' Put "--" before a text that begins with a dash.' if isinstance(error, UnknownOptionError) else ""
        fail(" ".join(str(error).replace(TEXT, "").split()) + hint)
        return EXIT_USAGE
    with friendly_warnings(), interruptible(process_ends=arguments is None):
        code = command(*bound.args, **bound.kwargs)
    if not words or (command == app.help_print and not {"-h", "--help"} & set(words)):
        return EXIT_USAGE  # no verb was named
    return int(code or 0)
