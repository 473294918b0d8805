"""draftgauge: measure, replay and run speculative decoding.

The functions below mirror the verbs of the command line. They are imported on first use, so that replaying and reading
traces does not load torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftgauge.api.bench import bench_run as bench
    from draftgauge.api.demo import demo
    from draftgauge.api.generate import generate
    from draftgauge.api.pair import Pair, load_pair
    from draftgauge.api.profile import profile
    from draftgauge.api.replay import replay_rows as replay
    from draftgauge.api.report import write_report as report
    from draftgauge.core.errors import DraftgaugeError
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
    "CostCurve": "draftgauge.traces.costs:CostCurve",
    "DraftgaugeError": "draftgauge.core.errors:DraftgaugeError",
    "Pair": "draftgauge.api.pair:Pair",
    "Policy": "draftgauge.policies.base:Policy",
    "Signal": "draftgauge.policies.base:Signal",
    "Step": "draftgauge.policies.base:Step",
    "Trace": "draftgauge.traces.trace:Trace",
    "bench": "draftgauge.api.bench:bench_run",
    "demo": "draftgauge.api.demo:demo",
    "generate": "draftgauge.api.generate:generate",
    "load_pair": "draftgauge.api.pair:load_pair",
    "make_policy": "draftgauge.policies.registry:make_policy",
    "profile": "draftgauge.api.profile:profile",
    "read_trace": "draftgauge.traces.reader:read_trace",
    "replay": "draftgauge.api.replay:replay_rows",
    "report": "draftgauge.api.report:write_report",
}

__all__ = [
    "CostCurve",
    "DraftgaugeError",
    "Pair",
    "Policy",
    "Signal",
    "Step",
    "Trace",
    "__version__",
    "bench",
    "demo",
    "generate",
    "load_pair",
    "make_policy",
    "profile",
    "read_trace",
    "replay",
    "report",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'draftgauge' has no attribute {name!r}")
    module, _, attribute = _PUBLIC[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return __all__
