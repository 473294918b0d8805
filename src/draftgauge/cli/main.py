"""The command line: one short file a verb, each registered here. Every setting of a request is an option of its verb.

cyclopts reads the command line and prints the help. Values stay text, which
:func:`~draftgauge.core.config.make_request` converts. So a command line and a Python call fail with the same words.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

from cyclopts import (
    App,
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
    UnknownOptionError,
    UnusedCliTokensError,
)

from draftgauge.cli import advise, bench, datastore, doctor, generate, profile, rank, replay, study, train
from draftgauge.cli.console import (
    EXIT_INCOMPLETE,
    EXIT_USAGE,
    IncompleteError,
    console,
    errors,
    fail,
    friendly_errors,
    friendly_warnings,
    interruptible,
    save_json,
)
from draftgauge.core.config import Setting, get_setting, make_request, settings_of, summary_of, type_name
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import require_writable_file

TEXT = "\0"
"""Before words that begin with a dash and are no options while cyclopts reads them; no word holds a zero."""
BASIC = ("target", "drafter", "prompts", "out", "policies")  # shown first, before what few need
PANEL = 3  # settings that a part of a request has at least, to be shown under a heading of its own

Rows = Iterable[Mapping[str, Any]]
Json = Annotated[str | None, Parameter(help="Also write the measured rows to this file.", metavar="FILE")]
Wide = Annotated[bool, Parameter(help="Show every column of a table on a narrow terminal too.", negative=())]
NO_TABLES = ("doctor", "generate", "build")  # verbs with rows that they do not show as a table


def as_words(words: Iterable[str]) -> list[str]:
    # For cyclopts "-" alone, and text such as a list with dashes, must not look like options.
    return [TEXT + word if re.match(r"-(?:$|[^=]*\s)", word) else word for word in words]


def add_verb(
    app: App, name: str, show: Callable[..., Rows | None], resume: str = "", group: Group | None = None
) -> None:
    """Add a command that makes a request and hands it to ``show``, which runs it and prints what came of it.

    The first parameter of ``show`` is the request; its keyword-only ones become options too. Where it returns rows, the
    command takes ``--json``, and ``--wide`` for its tables. ``resume`` is said after Ctrl-C.
    """
    hints = get_type_hints(show, include_extras=True)
    first, *others = inspect.signature(show).parameters.values()
    request_class = hints[first.name]
    settings = settings_of(request_class)
    positional = [entry for entry in settings if entry.positional]

    def command(*arguments: Any, **options: Any) -> int:
        options = {name: _as_typed(value) for name, value in options.items()}
        json, console.wide = options.pop("json", None), options.pop("wide", False)
        errors.spelled = {entry.name: entry.option for entry in settings if not entry.positional}
        further = {parameter.name: options.pop(parameter.name) for parameter in others if parameter.name in options}
        given = dict(zip((entry.name for entry in positional), map(_as_typed, arguments), strict=False))
        if positional and get_origin(positional[-1].annotation) is tuple:  # it takes all that are left
            given[positional[-1].name] = tuple(map(_as_typed, arguments[len(positional) - 1 :]))
        with friendly_errors(resume) as outcome:
            request = make_request(request_class, keywords=given | options, spelled=lambda entry: entry.option)
            destination = _destination(json, request)
            try:
                rows = show(request, **further)
            except IncompleteError as incomplete:
                rows, outcome.code = incomplete.rows, EXIT_INCOMPLETE
            if any("error" in row for row in rows or ()):  # of what was left out, said by a warning
                outcome.code = EXIT_INCOMPLETE
            save_json(destination, rows or ())
        return outcome.code

    parameters = [_parameter(request_class, entry) for entry in settings]
    parameters += [parameter.replace(annotation=hints[parameter.name]) for parameter in others]
    if hints["return"] is not type(None):
        parameters.append(inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Json))
        if name not in NO_TABLES:
            parameters.append(inspect.Parameter("wide", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Wide))
    parameters.sort(key=lambda parameter: (parameter.kind, parameter.name not in BASIC))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command(command, name=name, group=group, help=summary_of(request_class), sort_key=len(list(app)))


def _as_typed(value: Any) -> Any:
    if isinstance(value, list):
        return [*map(_as_typed, value)]
    return value.removeprefix(TEXT) if isinstance(value, str) else value


def _destination(json: str | None, request: Any) -> Path | None:
    """Where the rows go. A file that cannot be written, or is one of the inputs, is refused before any work is done."""
    if json is None:
        return None
    path = Path(json)
    if json == "-":
        raise DraftgaugeError("--json -: name a file; standard output shows the table")
    if path.is_dir() or any(parent.is_file() for parent in path.parents):
        raise DraftgaugeError(f"--json {path}: name a file in a folder, not a folder or a place below a file")
    if not path.exists() or path.is_file():  # else a device or a pipe, of whose folder nothing is asked
        require_writable_file(path)
    if path.exists() and any(os.path.exists(name) and path.samefile(name) for name in _named(request)):
        raise DraftgaugeError(f"--json {path} is one of the files to read; choose another file")
    return path


def _named(request: Any) -> Iterator[str]:
    for entry in settings_of(type(request)):
        value = get_setting(request, entry)
        yield from (str(item) for item in (value if isinstance(value, tuple) else (value,)))


@cache
def _parameter(request_class: type, entry: Setting) -> inspect.Parameter:
    """The parameter that cyclopts makes an option of. Booleans are switches; all else is text."""
    switch, required = entry.annotation in (bool, bool | None), entry.default is MISSING
    kind: Any = bool | None if switch else list[str] | None if entry.repeated and not entry.positional else str | None
    no: Any = entry.negative or (f"--no-{entry.option.removeprefix('--')}" if entry.default is not False else ())
    details = Parameter(
        name=None if entry.positional else tuple(filter(None, (entry.option, entry.short))),
        help=entry.help[:1].upper() + entry.help[1:],
        metavar=None if switch else _metavar(entry.annotation),
        negative=no if switch else (),
        show_default=_shown(entry.default),
        required=required,
        show=not entry.hidden,
        negative_iterable=(),
        negative_none=(),
        allow_repeating=True,  # the last one counts
        **_panel(request_class, entry),
    )
    if entry.positional and get_origin(entry.annotation) is tuple:
        return inspect.Parameter(entry.name, inspect.Parameter.VAR_POSITIONAL, annotation=Annotated[str, details])
    place = inspect.Parameter.POSITIONAL_ONLY if entry.positional else inspect.Parameter.KEYWORD_ONLY
    default = inspect.Parameter.empty if required else None
    return inspect.Parameter(entry.name, place, default=default, annotation=Annotated[kind, details])


def _shown(default: Any) -> Any:
    if default in (None, (), "", MISSING) or default is False:
        return False
    text = "on" if default is True else ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
    return lambda value: text


def _metavar(annotation: Any) -> str:
    words = type_name(annotation).replace(" or none", "")
    if words.startswith("list of"):
        return "LIST"
    return "TEXT" if "str" in words.split(" or ") or words.startswith("'") else words.upper()


def _panel(request_class: type, entry: Setting) -> dict[str, Any]:
    own = [other for other in settings_of(request_class) if other.path[:1] == entry.path[:1]]
    if not entry.path or len(own) < PANEL or entry.name in BASIC:
        return {}
    return {"group": Group(summary_of(type(getattr(request_class, entry.path[0]))).rstrip("."))}


KEPT = "Whatever was finished is kept: run the same command again to go on."
TRAINED = "Whatever the last checkpoint holds is kept: run the same command again to go on."
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
            ("costs", advise.costs, AT_ONCE),
        ),
        "Decide: draftgauge advise runs/x --engine transformers": (
            ("compare", rank.compare, AT_ONCE),
            ("replay", replay.replay, AT_ONCE),
            ("advise", advise.advise, AT_ONCE),
            ("fit", replay.fit, AT_ONCE),
            ("report", replay.report, AT_ONCE),
        ),
        'Run: draftgauge generate "What is 37 + 45?" --policy stopping --show-drafts': (
            ("generate", generate.generate, ""),
            ("demo", generate.demo, KEPT),
            stores,
        ),
        "Train: draftgauge train --target T --prompts train.jsonl --out drafter": (
            ("train", train.train, TRAINED),
            ("evaluate", train.evaluate, AT_ONCE),
            ("diagnose", train.diagnose, AT_ONCE),
            ("export", train.export, EXPORTED),
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
