"""How far to draft: what a policy is, the policies, and their names."""

from importlib import import_module
from pkgutil import iter_modules

from draftgauge.core.signals import Reads, SignalName
from draftgauge.policies.base import Policy, Signal, SignalArrays, StatelessPolicy, Step, import_others
from draftgauge.policies.spec import POLICIES, PolicySpec, make_policy, register_policy

for _module in iter_modules(__path__):  # every file registers its policy
    import_module(f"{__name__}.{_module.name}")
import_others(__name__)
