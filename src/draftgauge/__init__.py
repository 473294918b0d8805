"""draftgauge: measure, replay and run speculative decoding.

The functions below mirror the verbs of the command line. They are imported on first use, so that replaying and reading
traces does not load torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftgauge.api.advise import advise
    from draftgauge.api.bench import bench
    from draftgauge.api.datastore import build_datastore
    from draftgauge.api.demo import demo
    from draftgauge.api.diagnose import diagnose
    from draftgauge.api.evaluate import evaluate
    from draftgauge.api.export import export
    from draftgauge.api.fit import fit
    from draftgauge.api.generate import generate
    from draftgauge.api.pair import Pair, load_pair
    from draftgauge.api.profile import profile
    from draftgauge.api.replay import replay
    from draftgauge.api.report import report
    from draftgauge.api.requests import (
        AdviseRequest,
        BenchRequest,
        DatastoreBuildRequest,
        DemoRequest,
        DiagnoseRequest,
        EvaluateRequest,
        ExportRequest,
        FitRequest,
        GenerateRequest,
        ProfileRequest,
        ReplayRequest,
        ReportRequest,
        TrainRequest,
    )
    from draftgauge.api.train import train
    from draftgauge.core.errors import DraftgaugeError
    from draftgauge.integrations.transformers import Speculative, speculative
    from draftgauge.policies.base import Policy, Signal, Step
    from draftgauge.policies.registry import make_policy
    from draftgauge.traces.costs import CostCurve
    from draftgauge.traces.reader import read_trace
    from draftgauge.traces.trace import Trace

try:
    __version__ = version("draftgauge")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

_PUBLIC = {
    "AdviseRequest": "draftgauge.api.requests:AdviseRequest",
    "BenchRequest": "draftgauge.api.requests:BenchRequest",
    "CostCurve": "draftgauge.traces.costs:CostCurve",
    "DatastoreBuildRequest": "draftgauge.api.requests:DatastoreBuildRequest",
    "DemoRequest": "draftgauge.api.requests:DemoRequest",
    "DiagnoseRequest": "draftgauge.api.requests:DiagnoseRequest",
    "DraftgaugeError": "draftgauge.core.errors:DraftgaugeError",
    "EvaluateRequest": "draftgauge.api.requests:EvaluateRequest",
    "ExportRequest": "draftgauge.api.requests:ExportRequest",
    "FitRequest": "draftgauge.api.requests:FitRequest",
    "GenerateRequest": "draftgauge.api.requests:GenerateRequest",
    "Pair": "draftgauge.api.pair:Pair",
    "Policy": "draftgauge.policies.base:Policy",
    "ProfileRequest": "draftgauge.api.requests:ProfileRequest",
    "ReplayRequest": "draftgauge.api.requests:ReplayRequest",
    "ReportRequest": "draftgauge.api.requests:ReportRequest",
    "Signal": "draftgauge.policies.base:Signal",
    "Speculative": "draftgauge.integrations.transformers:Speculative",
    "Step": "draftgauge.policies.base:Step",
    "Trace": "draftgauge.traces.trace:Trace",
    "TrainRequest": "draftgauge.api.requests:TrainRequest",
    "advise": "draftgauge.api.advise:advise",
    "bench": "draftgauge.api.bench:bench",
    "build_datastore": "draftgauge.api.datastore:build_datastore",
    "demo": "draftgauge.api.demo:demo",
    "diagnose": "draftgauge.api.diagnose:diagnose",
    "evaluate": "draftgauge.api.evaluate:evaluate",
    "export": "draftgauge.api.export:export",
    "fit": "draftgauge.api.fit:fit",
    "generate": "draftgauge.api.generate:generate",
    "load_pair": "draftgauge.api.pair:load_pair",
    "make_policy": "draftgauge.policies.registry:make_policy",
    "profile": "draftgauge.api.profile:profile",
    "read_trace": "draftgauge.traces.reader:read_trace",
    "replay": "draftgauge.api.replay:replay",
    "report": "draftgauge.api.report:report",
    "speculative": "draftgauge.integrations.transformers:speculative",
    "train": "draftgauge.api.train:train",
}

__all__ = [
    "AdviseRequest",
    "BenchRequest",
    "CostCurve",
    "DatastoreBuildRequest",
    "DemoRequest",
    "DiagnoseRequest",
    "DraftgaugeError",
    "EvaluateRequest",
    "ExportRequest",
    "FitRequest",
    "GenerateRequest",
    "Pair",
    "Policy",
    "ProfileRequest",
    "ReplayRequest",
    "ReportRequest",
    "Signal",
    "Speculative",
    "Step",
    "Trace",
    "TrainRequest",
    "__version__",
    "advise",
    "bench",
    "build_datastore",
    "demo",
    "diagnose",
    "evaluate",
    "export",
    "fit",
    "generate",
    "load_pair",
    "make_policy",
    "profile",
    "read_trace",
    "replay",
    "report",
    "speculative",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'draftgauge' has no attribute {name!r}")
    module, _, attribute = _PUBLIC[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return __all__
