"""The checks of structure, prose and stub: package and pages pass, and each finds what it is there to find."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import draftgauge

ROOT = Path(__file__).parents[2]
POLICY = '@register_policy("{name}", "does nothing")\ndef make(a: int, *, gamma_max: int):\n    return a\n'
DRAFTER = '@register_drafter\nclass Source(DraftSource):\n    name = "toy"\n'
SOUND = {
    "policies/one.py": POLICY.format(name="one"),
    "drafters/toy.py": DRAFTER,
    "core/a.py": "from draftgauge.core import b\n",
    "core/b.py": "def later():\n    from draftgauge.core import a\n    return a\n",
}


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_structure", ROOT / "tools" / "check_structure.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in (SOUND | files).items():
        path = folder / "draftgauge" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for package in {path.parent for path in folder.rglob("*.py")} | {folder / "draftgauge"}:
        (package / "__init__.py").touch()
    return folder


EIGHT = ", ".join("abcdefgh")
RECORD = f"@dataclass\nclass Record:\n    a: int\ndef make({EIGHT}) -> Record:\n"
MADE = "    record = Record(a)\n    record.validate()\n    return record\n"


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, ""),
        (
            {"core/b.py": "from draftgauge.core.c import x\n", "core/c.py": "import draftgauge.core.a\n"},
            "import circle",
        ),
        ({"core/b.py": "class B:\n    from draftgauge.core import a\n"}, "draftgauge.core.a, draftgauge.core.b"),
        ({"core/b.py": "if TYPE_CHECKING:\n    from draftgauge.core import a\n"}, ""),
        ({"core/c.py": f"def f({EIGHT}):\n    return a\n"}, "f takes 8 parameters"),
        ({"core/c.py": f"class C:\n    def f(self, {EIGHT[:-3]}):\n        return 1\n"}, ""),
        ({"core/c.py": f"{RECORD}    return Record(a)\n"}, ""),
        ({"core/c.py": RECORD.replace("@dataclass\nclass Record", "class Record(NamedTuple)") + MADE}, ""),
        ({"core/c.py": f"{RECORD}    if a:\n        raise E\n    b = a\n{MADE}"}, ""),
        ({"core/c.py": f"{RECORD}    return work(Record(a))\n"}, "make takes 8 parameters"),
        ({"core/c.py": f"{RECORD}    work(a)\n{MADE}"}, "make takes 8 parameters"),
        ({"core/c.py": f"{RECORD}    for b in a:\n        work(b)\n{MADE}"}, "make takes 8 parameters"),
        ({"core/c.py": RECORD.replace("@dataclass\n", "") + MADE}, "make takes 8 parameters"),
        (
            {"policies/two.py": 'NAME = "one"\n' + POLICY.replace('"{name}"', "NAME")},
            "register_policy of 'one' in 2 places",
        ),
        ({"core/c.py": POLICY.format(name="two")}, "belongs into policies/"),
        (
            {"drafters/other.py": "class Other(DraftSource):\n    name = 'x'\n"},
            "Other is a kind of drafter that is not",
        ),
        ({"drafters/toy.py": ""}, "nothing in drafters/ is registered"),
    ],
)
def test_what_each_check_finds(
    check: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], files: dict[str, str], says: str
) -> None:
    code = check.main(written(tmp_path / "src", files))
    said = capsys.readouterr().err
    assert code == (1 if says else 0), said
    assert says in said


def test_what_grows_over_its_limit_is_named(
    check: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs/results").mkdir(parents=True)
    most = next(most for pattern, _, most in check.LIMITS if pattern.startswith("docs/results"))
    (tmp_path / "docs/results/rows.json").write_text("1" * (most * 1000 + 500))
    (tmp_path / "README.md").write_text("word " * 1_200)
    source = written(tmp_path / "src", {"core/c.py": "A = 1\n" * (check.LONGEST_FILE + 1)})
    assert check.main(source) == 1
    said = capsys.readouterr()
    assert "README.md: 1,200 words, more than 800" in said.err
    assert f"docs/results/**/*: {most + 1:,} kB, more than {most:,}" in said.err
    assert f"src/draftgauge/core/c.py: {check.LONGEST_FILE + 1} lines" in said.err
    assert "core" in said.out


def test_the_pages_pass_and_what_is_wrong_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import check_prose

    assert check_prose.main() == 0, capsys.readouterr().err
    monkeypatch.setattr(check_prose, "ROOT", tmp_path)
    sound = f"# 1 2, a\n[A](#1-2-a). {'Word ' * 25}.\n- 1 2 3 `4`.\n| {'c ' * 30} |\n```\n{'d ' * 30}\n```\n"
    (tmp_path / "page.md").write_text(sound)
    assert check_prose.main() == 0, capsys.readouterr().err
    (tmp_path / "page.md").write_text(
        f"{sound}{'word ' * 26}. 1%, 2.0x, +3 [4]! [b](#tail) [c](gone.md) {'`d`. ' * 900}"
    )
    in_code = '"""%s."""\ndef f():\n    """F.\n\n    Args:\n        a, b: %s.\n    """\n'
    written(tmp_path / "src", {"a.py": in_code % ("d " * 27, "`e` " * 23), "b.py": in_code % ("d " * 25, "e " * 26)})
    assert check_prose.main() == 1
    said = capsys.readouterr().err
    for found in ("26 words, 0 numbers", "4 numbers", "#tail, a heading", "gone.md, which", "words, more than 900"):
        assert found in said
    assert "a.py: 27 words" in said
    assert "b.py: 28 words, 0 numbers: a, b" in said
    assert said.count(".py:") == 2


def test_a_trace_names_the_files_that_a_request_enters_in_order(tmp_path: Path) -> None:
    files = {
        "draftgauge/__init__.py": "",
        "draftgauge/cli.py": "from draftgauge import verb\ndef run():\n    return verb.made()\n",
        "draftgauge/verb.py": "from draftgauge import unused\nfrom draftgauge.decoding import plain, settings\n"
        "def made():\n    settings.chosen()\n    plain.decode()\n    return unused.later()\n",
        "draftgauge/unused.py": "def at_import():\n    return 1\nONE = at_import()\ndef later():\n    return ONE\n",
        "draftgauge/decoding/settings.py": "def chosen():\n    return 0\n",
        "draftgauge/decoding/plain.py": "def decode():\n    return 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]; from pathlib import Path; from trace_request import Entered\n"
        "entered = Entered(Path(sys.argv[1]) / 'draftgauge')\nfrom draftgauge import cli\n"
        "with entered: cli.run()\nprint(*entered.files, entered.reached)"
    )
    said = subprocess.run(
        [sys.executable, "-I", "-c", script, str(tmp_path), str(ROOT / "tools")], capture_output=True, text=True
    )
    assert said.stdout.split() == ["cli.py", "verb.py", "decoding/settings.py", "decoding/plain.py"], said.stderr


PROGRAM = """\
from pathlib import Path
import draftgauge as dg

rows: dg.Rows = dg.profile(out="x", prompts=["a", {"prompt": "b"}], batches=[1, 2])
pair = dg.load_pair("reference", "reference")
print(dg.generate(pair, "hello", "fixed:4").text, dg.replay("x", ["fixed"]).verdict, dg.profile(pair, Path("x")))
dg.profile(tarrget=1)
dg.profile(out="x", limit="few")
dg.ReplayRequest
"""
WRONG = [7, 8, 9]  # lines


def test_the_package_says_what_there_is() -> None:
    assert not [name for name in draftgauge.__all__ if name.endswith("Request")]
    assert all(getattr(draftgauge, name) for name in draftgauge.__all__)


def test_mypy_refuses_wrong_keywords(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api", reason="mypy is no part of the tests' installation")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    options = ["--follow-imports=skip", "--config-file=", f"--cache-dir={tmp_path}", "--no-pretty"]
    said, _, _ = api.run([*options, str(ROOT / "src/draftgauge/__init__.pyi"), str(program)])
    assert [int(line.split(":")[1]) for line in said.splitlines() if ": error:" in line] == WRONG, said
