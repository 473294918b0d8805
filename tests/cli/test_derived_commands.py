"""The command line follows from the requests: one option with a help text for each setting, shown without torch."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import draftgauge as package
from command_line import draftgauge, succeeds
from draftgauge import requests
from draftgauge.core.config import make_request, settings_of
from draftgauge.core.parts import PairSpec
from written_runs import write_run

REQUESTS = {name: value for name, value in vars(requests).items() if name.endswith("Request")}
VERBS = (
    *(
        "demo",
        "profile",
        "rank",
        "doctor",
        "compare",
        "fit",
        "replay",
        "bench",
        "bench-servers",
        "costs",
        "advise",
        "generate",
        "report",
    ),
    *("train", "evaluate", "diagnose", "export", "datastore build", "study kvshot", "study speckv"),
)
PLACE = "no/such"


def request_of(verb: str) -> str:
    return verb.title().replace("-", "").replace(" ", "") + "Request"


def test_every_request_has_a_verb_and_every_setting_a_help_text() -> None:
    assert sorted(map(request_of, VERBS)) == sorted(REQUESTS)
    for name, request in REQUESTS.items():
        for entry in settings_of(request):
            assert entry.help.endswith(".") or (entry.hidden and entry.name == "draft"), (name, entry.name)


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_every_setting_and_values_as_they_are_typed(verb: str) -> None:
    result = succeeds(*verb.split(), "--help")
    assert result.stdout.count("\n") <= 60 or verb in ("profile", "train")
    shown = result.stdout.split()
    settings = settings_of(REQUESTS[request_of(verb)])
    for entry in settings:
        assert ((entry.name.upper() if entry.positional else entry.option) in shown) != entry.hidden, entry.name
    assert shown.count("on]") == sum(entry.default is True for entry in settings)
    words = " ".join(result.stdout.replace("│", " ").split())
    for wrong in ("[default: ]", "Cpu", "Kl ", "Eagle3", "'EAGLE3'", "'TRAIN'", "`"):
        assert wrong not in words, wrong


LIGHT = """\
import sys
from draftgauge import read_trace
from draftgauge.cli.main import run
import draftgauge.studies.speckv.page, draftgauge.studies.kvshot.page

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "tokenizers", "safetensors", "accelerate"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
folder = sys.argv[1]
codes = [run([verb, folder, *more]) for verb, *more in (
    ("replay",), ("report",), ("fit", "--split", "all", "--out", f"{folder}/rule.json"), ("advise",), ("doctor",)
)]
assert [code for code in codes[:-1] if code] == [], codes
assert run(["generate", "x"]) == run(["doctor"]) == 2
"""


def test_what_needs_no_model_needs_no_library_of_models(tmp_path: Path) -> None:
    source, run = str(Path(package.__file__).parents[1]), write_run(tmp_path / "run", 24)
    command = [sys.executable, "-c", LIGHT, run]
    ended = subprocess.run(command, env={"PYTHONPATH": source}, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "the files of the models are not looked at: this needs" in ended.stderr
    assert ended.stderr.count("error: this needs torch, which is not installed: pip install 'draftgauge[models]'") == 2
    program = "import sys; from draftgauge.cli.main import run; run(['--help']); sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": source}, capture_output=True, check=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "--polcy", "none"], "Unknown option: --polcy. Did you mean --policy?"),
        (["bench", "--rounds", "few"], "--rounds must be int or none, not 'few'"),
        (["bench", "--rounds", "0"], "rounds must be at least 1, not 0"),
        (["bench", "a", "b"], "'b'"),
        (["profile"], "--out is required"),
        (["profile", "--out"], "--out requires an argument"),
        (["generate"], "PROMPT is required"),
        (["fly"], "fly"),
        (["bench", "runs", "--target", "other"], "leave out --target, or the run"),
        (["bench", "runs", "--max-new-tokens", "128"], "leave out --max-new-tokens, or the run"),  # its default too
        (["bench", "runs", "--measure"], "leave out --measure, or the run"),
        (["bench", "runs", "--long-prompts", "skip"], "leave out --long-prompts, or the run"),
        (["bench", "--drafter", "prompt_lookup", "--draft", "a"], "drafts without the model a"),
        (["bench", "--over", "fixed", "--policy", "no-draft"], "one policy, and 'fixed' stands for several"),
        (["generate", "x", "--compression", "uncompressed,int8"], "one compression"),
        (["doctor", "--compression", "uncompressed,int8"], "one compression"),
        (["bench-servers", "plain=http://h:1", "fixed:four=http://h:2"], "gamma"),
        (["generate", "hi", "--max-new-tokens", "-3"], "--max-new-tokens must be at least 1, not -3"),
        (["generate", "hi", "--gamma-max", "0"], "--gamma-max must be at least 1"),
        (["profile", "--out", PLACE, "--seconds", "-5"], "--seconds must be above 0, not -5"),
        (["profile", "--out", PLACE, "--long-prompts", "no"], "--long-prompts must be one of error, truncate, skip"),
        (["generate", "hi", "--seed", "9" * 30], "--seed must be a number of 64 bits"),
        (["generate", "hi", "--cost-seconds", "inf"], "--cost-seconds must be at least 0 and finite, not inf"),
        (["demo", "--seconds", "nan"], "--seconds must be at least 1, not nan"),
        (["profile", "--out", PLACE, "--prompts", "reference:nope"], "train, validation, test"),
        (["profile", "--out", PLACE, "--split", "nope"], "train, validation, test"),
        (["profile", "--out", PLACE, "--outputs", "nope.jsonl"], "there is no file of answers nope.jsonl"),
        (["generate", "hi", "--checkpoint-sampling", "--top-k", "3"], "takes temperature, --top-k"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    result = draftgauge(arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_no_verb_shows_the_help_and_fails() -> None:
    for arguments in ([], ["study"]):
        result = draftgauge(arguments)
        assert (result.exit_code, "Usage: draftgauge" in result.stdout) == (2, True)
    assert draftgauge(["--version"]).stdout.strip() == package.__version__


def test_no_room_has_the_name_of_a_verb() -> None:
    rooms = {path.name.removesuffix(".py") for path in Path(package.__path__[0]).iterdir()}
    assert not rooms & set(package.__all__)


def test_python_functions_take_settings_or_a_request(tmp_path: Path) -> None:
    for arguments, keywords in (
        ((str(tmp_path),), {}),
        ((), {"folder": str(tmp_path)}),
        ((requests.ReplayRequest(folder=tmp_path),), {}),
    ):
        with pytest.raises(package.DraftgaugeError, match="draftgauge profile"):
            package.replay(*arguments, **keywords)
    with pytest.raises(package.DraftgaugeError, match=r"^demo\(\): no setting 'output'"):
        package.demo(output="x")
    signature = inspect.signature(package.profile)
    assert signature.parameters["max_new_tokens"].default == requests.OutputSpec().max_new_tokens
    assert {"out", "target", "gamma_max", "progress"} <= set(signature.parameters)


def test_draft_is_a_former_name_of_drafter() -> None:
    for given, drafter in (
        ({"draft": "a"}, "a"),
        ({"draft": "a", "drafter": "language_model"}, "a"),
        ({"draft": "reference", "drafter": "lookup"}, "lookup"),
        ({"draft": None, "drafter": "b"}, "b"),
    ):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            pair = make_request(PairSpec, keywords=given)
        assert pair == PairSpec(drafter=drafter)
        assert [each.category for each in warned] == [DeprecationWarning] * (given["draft"] is not None)
    assert "--draft " not in draftgauge(["bench", "--help"]).stdout
    assert "draft" not in inspect.signature(package.bench).parameters
