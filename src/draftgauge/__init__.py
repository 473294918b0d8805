"""draftgauge: measure, replay and run speculative decoding.

The functions below mirror the verbs of the command line. They are imported on first use, so that replaying and reading
traces does not load torch. Their signatures are in ``__init__.pyi``.
"""

from __future__ import annotations

_VERBS = (
    *(
        "advise",
        "bench",
        "bench_servers",
        "compare",
        "demo",
        "diagnose",
        "doctor",
        "evaluate",
        "export",
        "fit",
        "generate",
    ),
    *("profile", "rank", "replay", "report", "train"),
)
_MODULES = {
    **{name: f"api.{name}" for name in _VERBS},
    "build_datastore": "api.datastore",
    "costs": "api.engine_costs",
    "load_pair": "pair.loading",
    "Pair": "pair.loading",
    "Run": "api.runs",
    "Generation": "decoding.results",
    "DraftgaugeError": "core.errors",
    "Rows": "core.table",
    "Speculative": "integrations.transformers",
    "speculative": "integrations.transformers",
    "Policy": "policies.base",
    "Signal": "policies.base",
    "Step": "policies.base",
    "make_policy": "policies.spec",
    "plot": "reporting.plot",
    "CostCurve": "traces.costs",
    "read_trace": "traces.run",
    "Trace": "traces.trace",
}
__all__ = ["__version__", *sorted(_MODULES)]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("draftgauge")
        except PackageNotFoundError:  # run from a source tree that was never installed
            return "0+unknown"
    if name not in _MODULES:
        raise AttributeError(f"module 'draftgauge' has no attribute {name!r}")
    try:
        module = import_module(f"draftgauge.{_MODULES[name]}")
        return module if name == "plot" else getattr(module, name)
    except ModuleNotFoundError as error:
        from draftgauge.core.errors import missing_library

        raise missing_library(error.name) or error from error


def __dir__() -> list[str]:
    return __all__
