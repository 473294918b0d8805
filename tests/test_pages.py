"""What the pages tell readers to type: every command is one that the command line takes, and the Python runs."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import draftgauge
from command_line import draftgauge as command_line
from draftgauge.cli import main
from draftgauge.integrations import transformers as generating
from draftgauge.policies.spec import POLICIES

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")))
PYTHON = ("README.md", "docs/policies.md", "docs/python.md", "docs/transformers.md")
SMALL = {"limit": 2, "max_new_tokens": 8, "gamma_max": 2, "cost_seconds": 0, "device": "cpu"}


def blocks(page: str, language: str) -> list[str]:
    """The code of a page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def commands(page: str) -> list[str]:
    """The lines that start draftgauge, without what is left to the reader (``...``)."""
    lines = "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    started = [re.sub(r"^torchrun .* -m draftgauge", "draftgauge", line) for line in lines]
    return [line.replace(" ... ", " ") for line in started if line.startswith("draftgauge ")]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests of commands, which are not run."""
    requests: list[Any] = []

    def recording(show: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(show)
        def record(request: Any, **further: Any) -> None:
            requests.append(request)

        return record

    add_verb = main.add_verb
    monkeypatch.setattr(main, "add_verb", lambda app, name, show, *rest, **named: add_verb(app, name, recording(show)))
    return requests


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_the_commands_of_a_page_are_taken(
    page: str, asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, line in enumerate(commands(page), start=1):
        result = command_line(shlex.split(line, comments=True)[1:])
        assert result.exit_code == 0, f"{line}\n{result.output}"
        assert len(asked) == number, line


@pytest.mark.parametrize("page", PYTHON)
def test_the_python_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(generating, "MEASURING_SECONDS", 0.3)
    monkeypatch.setattr(draftgauge, "profile", functools.partial(draftgauge.profile, **SMALL))
    names: dict[str, Any] = {}
    for code in blocks(page, "python"):
        code = re.sub("path/to/(target|draft)", "reference", code)
        exec(compile(code.replace('"int8"', '"uncompressed"').replace("=64", "=16"), page, "exec"), names)
    if page == "README.md":
        assert {row["policy"] for row in names["rows"]} >= {"fixed:1", "cumulative-confidence:threshold=0.3"}
        assert names["answer"].tokens_per_step > 1
    elif page == "docs/policies.md":
        assert "cautious" in {row["policy"] for row in names["rows"]}
    elif page == "docs/python.md":
        assert names["rows"].verdict.startswith("Not known yet")  # of two prompts
    else:
        plain = names["model"].generate(**names["inputs"], max_new_tokens=16, do_sample=False)
        assert names["output"].tolist() == plain.tolist()


def first_column(page: str, title: str) -> list[str]:
    """What stands in code in the first column of a table."""
    table = (ROOT / page).read_text(encoding="utf-8").split(f"| {title} |")[1].split("\n\n")[0]
    return re.findall("`([^`]+)`", " ".join(re.findall(r"^\|([^|]+)\|", table, re.MULTILINE)))


def test_the_table_of_policies_is_whole() -> None:
    assert sorted({name.split(":")[0] for name in first_column("docs/policies.md", "name")}) == sorted(POLICIES)


def test_the_table_of_verbs_is_whole() -> None:
    named = first_column("docs/commands.md", "verb")
    assert sorted({name.split()[0] for name in named}) == sorted(
        name for name in main.make_app() if not name.startswith("-")
    )
