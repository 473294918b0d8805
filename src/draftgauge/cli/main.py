"""The command line: one short file a verb, each registered here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from cyclopts import App, CycloptsError, Group, MissingArgumentError, UnknownOptionError, UnusedCliTokensError

from draftgauge.cli import (
    advise,
    bench,
    compare,
    costs,
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
TRAINED = "Everything up to the last checkpoint is kept: run the same command again to go on."
AT_ONCE = "Each file is whole or as it was: run the same command again."
EXPORTED = "No engine loads a checkpoint that was begun: run the same command again."


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
    stores = App(name="datastore", help="Earlier outputs that tokens may be looked up in.")
    add_verb(stores, "build", datastore.build, AT_ONCE)
    studies = App(name="study", help="The papers' comparisons as runnable studies.")
    add_verb(studies, "kvshot", study.kvshot, "Finished cells are kept: the same command goes on from there.")
    add_verb(studies, "speckv", study.speckv, AT_ONCE)
    groups: dict[str, tuple[tuple[str, Callable[..., Any], str] | App, ...]] = {
        "Measure: draftgauge profile --target T --drafter D --prompts prompts.jsonl --out runs/x": (
            ("profile", profile.profile, KEPT),
            ("rank", rank.rank, KEPT),
            ("doctor", doctor.doctor, ""),
            ("bench", bench.bench, AT_ONCE),
            ("bench-servers", bench.bench_servers, AT_ONCE),
            ("costs", costs.costs, AT_ONCE),
        ),
        "Decide: draftgauge advise runs/x --engine transformers": (
            ("compare", compare.compare, AT_ONCE),
            ("replay", replay.replay, AT_ONCE),
            ("advise", advise.advise, AT_ONCE),
            ("fit", fit.fit, AT_ONCE),
            ("report", report.report, AT_ONCE),
        ),
        'Run: draftgauge generate "What is 37 + 45?" --policy stopping --show-drafts': (
            ("generate", generate.generate, ""),
            ("demo", demo.demo, KEPT),
            stores,
        ),
        "Train: draftgauge train --target T --prompts train.jsonl --out drafter": (
            ("train", train.train, TRAINED),
            ("evaluate", evaluate.evaluate, AT_ONCE),
            ("diagnose", diagnose.diagnose, AT_ONCE),
            ("export", export.export, EXPORTED),
        ),
        "Research: draftgauge study kvshot --preset smoke --out study": (studies,),
    }
    for place, (title, commands) in enumerate(groups.items()):
        group = Group(title, sort_key=place)
        for command in commands:
            if isinstance(command, App):
                command.group = group
                app.command(command)
            else:
                add_verb(app, *command, group)
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
