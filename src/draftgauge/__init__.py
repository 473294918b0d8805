"""draftgauge: measure, replay and run speculative decoding.

The functions below mirror the verbs of the command line. They are imported on first use, so that replaying and reading
traces does not load torch.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from draftgauge.api.advise import advise
    from draftgauge.api.bench import bench
    from draftgauge.api.bench_servers import bench_servers
    from draftgauge.api.datastore import build_datastore
    from draftgauge.api.demo import demo
    from draftgauge.api.diagnose import diagnose
    from draftgauge.api.doctor import doctor
    from draftgauge.api.evaluate import evaluate
    from draftgauge.api.export import export
    from draftgauge.api.fit import fit
    from draftgauge.api.generate import generate
    from draftgauge.api.pair import Pair, load_pair
    from draftgauge.api.profile import profile
    from draftgauge.api.rank import rank
    from draftgauge.api.replay import replay
    from draftgauge.api.report import report
    from draftgauge.api.requests import (
        AdviseRequest,
        BenchRequest,
        BenchServersRequest,
        DatastoreBuildRequest,
        DemoRequest,
        DiagnoseRequest,
        DoctorRequest,
        EvaluateRequest,
        ExportRequest,
        FitRequest,
        GenerateRequest,
        ProfileRequest,
        RankRequest,
        ReplayRequest,
        ReportRequest,
        TrainRequest,
    )
    from draftgauge.api.runs import Run
    from draftgauge.api.train import train
    from draftgauge.core.errors import DraftgaugeError
    from draftgauge.core.table import Rows
    from draftgauge.integrations.transformers import Speculative, speculative
    from draftgauge.policies.base import Policy, Signal, Step
    from draftgauge.policies.spec import make_policy
    from draftgauge.reporting import plot
    from draftgauge.traces.costs import CostCurve
    from draftgauge.traces.run import read_trace
    from draftgauge.traces.trace import Trace

    __version__: str

_MODULES = {  # where they are not api.<name>
    "api.datastore": ("build_datastore",),
    "api.runs": ("Run",),
    "api.pair": ("Pair", "load_pair"),
    "core.errors": ("DraftgaugeError",),
    "core.table": ("Rows",),
    "integrations.transformers": ("Speculative", "speculative"),
    "policies.base": ("Policy", "Signal", "Step"),
    "policies.spec": ("make_policy",),
    "reporting": ("plot",),
    "traces.costs": ("CostCurve",),
    "traces.run": ("read_trace",),
    "traces.trace": ("Trace",),
}

__all__ = [
    "AdviseRequest",
    "BenchRequest",
    "BenchServersRequest",
    "CostCurve",
    "DatastoreBuildRequest",
    "DemoRequest",
    "DiagnoseRequest",
    "DoctorRequest",
    "DraftgaugeError",
    "EvaluateRequest",
    "ExportRequest",
    "FitRequest",
    "GenerateRequest",
    "Pair",
    "Policy",
    "ProfileRequest",
    "RankRequest",
    "ReplayRequest",
    "ReportRequest",
    "Rows",
    "Run",
    "Signal",
    "Speculative",
    "Step",
    "Trace",
    "TrainRequest",
    "__version__",
    "advise",
    "bench",
    "bench_servers",
    "build_datastore",
    "demo",
    "diagnose",
    "doctor",
    "evaluate",
    "export",
    "fit",
    "generate",
    "load_pair",
    "make_policy",
    "plot",
    "profile",
    "rank",
    "read_trace",
    "replay",
    "report",
    "speculative",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("draftgauge")
        except PackageNotFoundError:  # run from a source tree that was never installed
            return "0+unknown"
    if name not in __all__:
        raise AttributeError(f"module 'draftgauge' has no attribute {name!r}")
    from importlib import import_module

    usual = "api.requests" if name.endswith("Request") else f"api.{name}"
    module = next((module for module, names in _MODULES.items() if name in names), usual)
    try:
        found = import_module(f"draftgauge.{module}")
        return import_module(f"draftgauge.{module}.{name}") if name == "plot" else getattr(found, name)
    except ModuleNotFoundError as error:
        from draftgauge.core.errors import missing_library

        raise missing_library(error.name) or error from error


def __dir__() -> list[str]:
    return __all__
