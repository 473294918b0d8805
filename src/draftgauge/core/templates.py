"""The one Jinja environment: what every page and card of the package is rendered in."""

from __future__ import annotations

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def environment(*packages: str, autoescape: bool = True) -> Environment:
    """Templates of some packages, the first one that has a name winning; an undefined value is an error."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in packages]),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
