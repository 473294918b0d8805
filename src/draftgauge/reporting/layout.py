"""The frame of every page: one HTML file with its style inside, which asks nothing of the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from draftgauge.core.templates import environment
from draftgauge.reporting.style import colour_variables

KIT = "draftgauge.reporting"


Functions = Mapping[str, Callable[..., Any]]


def render_page(
    template: str, title: str, values: Mapping[str, Any], package: str = KIT, functions: Functions | None = None
) -> str:
    """A page as text; the same values give the same text.

    Args:
        template: its name; it extends ``layout.html.j2``, and may import the macros of ``parts.html.j2``.
        title: of the page.
        values: that it shows.
        package: whose templates come before those of the kit.
        functions: that the template may call.
    """
    pages = environment(*dict.fromkeys((package, KIT)))
    pages.globals.update(functions or {})
    colours = {"light": colour_variables("light"), "dark": colour_variables("dark")}
    return pages.get_template(template).render({"title": title} | colours | dict(values))
