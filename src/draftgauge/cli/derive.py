"""Commands derived from requests: every setting of a request is an option of its verb.

cyclopts reads the command line and prints the help; values stay text, which
:func:`~draftgauge.core.settings.make_request` converts, so that a command line and a Python call take the same way and
fail with the same words.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Annotated, Any, cast, get_origin, get_type_hints

from cyclopts import App, Parameter
from cyclopts.group import Group

from draftgauge.cli.console import EXIT_INCOMPLETE, IncompleteError, friendly_errors, save_json
from draftgauge.core.config import type_name
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import require_writable_file
from draftgauge.core.settings import Setting, get_setting, make_request, settings_of, summary_of

DASH = "\0-"
"""The word ``-`` while cyclopts reads the words; none of a command line holds a zero."""
PANEL = 3  # settings that a part of a request has at least, to be shown under a heading of its own

Rows = Iterable[Mapping[str, Any]]
Json = Annotated[str | None, Parameter(help="Also write the measured rows to this file.", metavar="FILE")]


def add_verb(app: App, name: str, show: Callable[..., Rows | None], resume: str = "") -> None:
    """Add a command that asks for a request and hands it to a function that runs it and shows what came of it.

    Args:
        app: receives the command.
        name: of the command.
        show: its first parameter is the request, by its annotation; its keyword-only ones become options too. Where it
            returns rows, the command takes ``--json``.
        resume: said after Ctrl-C.
    """
    hints = get_type_hints(show, include_extras=True)
    own = [p for p in inspect.signature(show).parameters.values() if p.kind is p.KEYWORD_ONLY]
    request_class = hints[next(iter(inspect.signature(show).parameters))]
    measures = hints["return"] is not type(None)

    def command(*arguments: Any, **options: Any) -> int:
        arguments = tuple(map(_as_typed, arguments))
        options = {name: _as_typed(value) for name, value in options.items()}
        json = options.pop("json", None)
        further = {parameter.name: options.pop(parameter.name) for parameter in own if parameter.name in options}
        given = _positional(request_class, arguments) | options
        with friendly_errors(resume) as outcome:
            target = None if json is None else Path(json)
            request = _request_of(request_class, given)
            _check_destination(target, request)
            try:
                rows = show(request, **further)
            except IncompleteError as incomplete:
                rows, outcome.code = incomplete.rows, EXIT_INCOMPLETE
            save_json(target, rows or ())
        return outcome.code

    parameters = [_parameter(entry, _panel(request_class, entry)) for entry in settings_of(request_class)]
    parameters += [parameter.replace(annotation=hints[parameter.name]) for parameter in own]
    if measures:
        json = inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Json)
        parameters.append(json)
    parameters.sort(key=lambda parameter: parameter.kind)
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command(command, name=name, help=summary_of(request_class), sort_key=len(list(app)))


def _request_of(request_class: type, given: Mapping[str, Any]) -> Any:
    """The request, whose refusals name settings as the command line does: ``--max-new-tokens``."""
    try:
        return make_request(request_class, keywords=given, spelled=lambda entry: entry.option)
    except DraftgaugeError as error:
        options = {entry.name: entry.option for entry in settings_of(request_class) if not entry.positional}
        named = re.match(r"\w+(?= must | takes )", str(error))
        if named is None or named[0] not in options:
            raise
        raise type(error)(options[named[0]] + str(error)[named.end() :]) from error


def _positional(request_class: type, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Values given without a name; a list takes all that are left."""
    entries = [entry for entry in settings_of(request_class) if entry.positional]
    given = {entry.name: value for entry, value in zip(entries, arguments, strict=False)}
    if entries and _is_list(entries[-1]) and entries[-1].name in given:
        given[entries[-1].name] = arguments[len(entries) - 1 :]
    return given


def _as_typed(value: Any) -> Any:
    """A value with the words that were typed."""
    return [*map(_as_typed, value)] if isinstance(value, list) else "-" if value == DASH else value


def _is_list(entry: Setting) -> bool:
    return entry.positional and get_origin(entry.annotation) is tuple


def _parameter(entry: Setting, panel: dict[str, Any]) -> inspect.Parameter:
    """The parameter that cyclopts makes an option of."""
    switch = entry.annotation in (bool, bool | None)
    kind: Any = bool | None if switch else list[str] | None if entry.repeated else str | None
    details = Parameter(
        name=None if entry.positional else tuple(filter(None, (entry.option, entry.short))),
        help=entry.help[:1].upper() + entry.help[1:],
        metavar=None if switch else _metavar(entry.annotation),
        negative=_negative(entry) if switch else (),
        show_default=_shown(entry.default) if entry.default is not MISSING else False,
        required=entry.default is MISSING,
        negative_iterable=(),
        negative_none=(),
        allow_repeating=True,  # the last one counts
        **panel,
    )
    if _is_list(entry):
        return inspect.Parameter(entry.name, inspect.Parameter.VAR_POSITIONAL, annotation=Annotated[str, details])
    return inspect.Parameter(
        entry.name,
        inspect.Parameter.POSITIONAL_ONLY if entry.positional else inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if entry.default is MISSING else None,
        annotation=Annotated[kind, details],
    )


def _negative(entry: Setting) -> Any:
    """The switch that says no: only where the default is not no already."""
    named = entry.negative
    return named or (f"--no-{entry.option.removeprefix('--')}" if entry.default is not False else ())


def _shown(default: Any) -> Any:
    """How the help shows a default; False where there is nothing to show."""
    if default in (None, (), "") or default is False:
        return False
    text = "on" if default is True else ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
    return lambda value: text


def _metavar(annotation: Any) -> str:
    """``INT``, ``PATH``, ``LIST``, without the ``or none`` that leaving an option out stands for."""
    words = type_name(annotation).replace(" or none", "")
    if words.startswith("list of"):
        return "LIST"
    return "TEXT" if "str" in words.split(" or ") or words.startswith("'") else words.upper()


def _panel(request_class: type, entry: Setting) -> dict[str, Any]:
    """The heading of the part of the request that a setting belongs to, if it is shown under one."""
    if not entry.path:
        return {}
    part = entry.path[0]
    if sum(other.path[:1] == (part,) for other in settings_of(request_class)) < PANEL:
        return {}
    return {"group": Group(summary_of(cast(type, get_type_hints(request_class)[part])).rstrip("."))}


def _check_destination(json: Path | None, request: Any) -> None:
    """Refuse a JSON file that cannot be written, or is one of the inputs, before any work is done."""
    if json is None:
        return
    if json.is_dir() or any(parent.is_file() for parent in json.parents):
        raise DraftgaugeError(f"--json {json}: name a file in a folder, not a folder or a place below a file")
    if not json.exists() or json.is_file():  # else a device or a pipe, of whose folder nothing is asked
        require_writable_file(json)
    if json.exists() and any(os.path.exists(name) and json.samefile(name) for name in _named(request)):
        raise DraftgaugeError(f"--json {json} is one of the files to read; choose another file")


def _named(request: Any) -> Iterator[str]:
    """What may name a file: prompts and fitted policies are given as text."""
    for entry in settings_of(type(request)):
        value = get_setting(request, entry)
        items = value if isinstance(value, tuple) else (value,)
        yield from (str(item) for item in items if isinstance(item, str | Path))
