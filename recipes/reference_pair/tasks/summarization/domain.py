"""What a domain of reports is: the happenings, figures, causes, decisions and plans that it may tell of.

Texts hold slots such as ``{town}`` or ``{noun}``. Where several wordings of one thing are given, the report uses one
and its summary another.
"""

from __future__ import annotations

from dataclasses import dataclass

Wordings = tuple[str, ...]


@dataclass(frozen=True)
class Domain:
    """One domain of reports.

    Attributes:
        name: part of the template.
        titles: headlines.
        events: happenings, each as clauses in the past tense that name the same slots.
        figures: total figures, each as clauses around ``{n}``.
        effects: what the causes explain, singular.
        causes: singular noun phrases around ``{noun}`` (or ``{ident}``).
        actors: who decides, singular.
        deeds: what is decided, as a verb phrase in its base form.
        roles: what somebody is made.
        costs: what money is spent on, singular.
        plans: what is to follow on a date, singular.
    """

    name: str
    titles: tuple[str, ...]
    events: tuple[Wordings, ...]
    figures: tuple[Wordings, ...]
    effects: tuple[str, ...]
    actors: tuple[str, ...]
    deeds: tuple[str, ...]
    roles: tuple[str, ...]
    costs: tuple[str, ...]
    plans: tuple[str, ...]
    causes: tuple[str, ...] = (
        "a {adj} {noun}",
        "a fault in the {noun}",
        "a shortage of {adj} {noun}s",
        "a missing {noun}",
        "a mistake with the {adj} {noun}",
        "the loss of a {noun}",
    )
