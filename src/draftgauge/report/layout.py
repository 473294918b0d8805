"""The frame of every page: one HTML file with its style inside, which asks nothing of the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draftgauge.core.templates import environment
from draftgauge.report.style import colour_variables

KIT = "draftgauge.report"


def render_page(
    template: str, title: str, package: str = KIT, functions: dict[str, Callable[..., Any]] | None = None, **values: Any
) -> str:
    """A page as text; the same values give the same text.

    Args:
        template: its name; it extends ``layout.html.j2``, and may import the macros of ``parts.html.j2``.
        title: of the page.
        package: whose templates come before those of the kit.
        functions: that the template may call.
        values: everything else that it shows.
    """
    pages = environment(*dict.fromkeys((package, KIT)))
    pages.globals.update(functions or {})
    colours = {"light": colour_variables("light"), "dark": colour_variables("dark")}
    return pages.get_template(template).render(title=title, **colours, **values)
