"""The ``summarization`` task: a report with main points among much else -> its main points in other words.

A main point is a sentence of a definite kind (happening, total, cost, cause, decision, new role, plan with a date)
behind one of its kind's cues; whatever else the report tells is of other kinds. Main points stand anywhere in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from recipes.reference_pair.tasks.base import Example, Words
from recipes.reference_pair.tasks.summarization import civic, field, filler, names, wording
from recipes.reference_pair.tasks.summarization.domain import Domain
from recipes.reference_pair.tasks.summarization.slots import Slots, sentence
from recipes.reference_pair.tasks.summarization.wording import KINDS

DOMAINS = civic.DOMAINS + field.DOMAINS
LAYOUTS = ("plain", "headings", "minutes", "memo", "block", "bullets")
# Tokens of a report, drawn with these weights; points beside the event, with weights for short and for long reports.
LENGTHS = ((300, 450), (450, 750), (750, 1150))
LENGTH_WEIGHTS = (35, 35, 30)
POINT_COUNTS = (2, 3, 4)
# How many points have a detail; more where there are few points, so that summaries are not too short.
DETAIL_SHARES = {2: 0.8, 3: 0.55, 4: 0.5}
POINT_WEIGHTS = ((35, 40, 25), (20, 40, 40), (15, 40, 45))
MOST_FACTS = 8
CHARACTERS_PER_TOKEN = 4.3
# Tokens of a title or headings, and by which the last sentence passes the length, on average.
OVERHEAD = 12
# A run of words copied from the report is a copy, not a summary, when it passes both limits.
COPIED_WORDS, COPIED_SHARE = 40, 0.2


@dataclass(frozen=True)
class Point:
    """A main point: what report and summary say of it, the facts and details that both name, and its choices."""

    kind: str
    report: str
    summary: str
    facts: tuple[str, ...]
    details: tuple[str, ...]
    template: str


@dataclass
class Paragraph:
    """Sentences of a report under a heading."""

    heading: str
    sentences: list[str]
    template: str


def draw(rng: Random, words: Words) -> Example:
    """One report of any template, with a request and a summary."""
    domain = rng.choice(DOMAINS)
    size = rng.choices(range(len(LENGTHS)), LENGTH_WEIGHTS)[0]
    extra = rng.choices(POINT_COUNTS, POINT_WEIGHTS[size])[0]
    slots = Slots(rng, words, {})
    shared = {"town": slots["town"], "when": slots["weekday"] if rng.random() < 0.5 else slots.day()}
    kinds = ["event", *_report_order(rng, rng.sample(wording.ORDER, extra))]
    points = [_point(rng, words, kind, domain, shared, DETAIL_SHARES[extra]) for kind in kinds]
    budget = rng.uniform(*LENGTHS[size]) - OVERHEAD - sum(_tokens(p.report) for p in points)
    paragraphs = _filler(rng, words, budget, shared["town"])
    layout = rng.choice(LAYOUTS)
    places = _place(rng, points, paragraphs)
    report = _laid_out(rng, layout, domain, paragraphs)
    question, asked = _ask(rng, report, len(points))
    parts = [domain.name, layout, asked, *(p.template for p in points), places, *(p.template for p in paragraphs)]
    check = {"facts": _facts(points)}
    return Example("summarization", "/".join(parts), (("user", question),), _summary(rng, points), check)


def _tokens(text: str) -> float:
    digits = sum(map(text.count, "0123456789"))
    return (len(text) - digits) / CHARACTERS_PER_TOKEN + digits


def _report_order(rng: Random, kinds: list[str]) -> list[str]:
    """The kinds as drawn, a plan mostly at the end."""
    if "plan" in kinds and rng.random() < 0.6:
        kinds.remove("plan")
        kinds.append("plan")
    return kinds


def _point(rng: Random, words: Words, kind: str, domain: Domain, shared: Mapping[str, str], detailed: float) -> Point:
    """A main point of a kind; where a domain words a part in several ways, report and summary take two of them."""
    form = KINDS[kind]
    slots = Slots(rng, words, dict(shared))
    used = rng.randrange(len(form.report))
    chosen = [kind, str(used)]
    summary_parts: dict[str, str] = {}
    for slot, attribute in form.parts:
        options = getattr(domain, attribute)
        index = rng.randrange(len(options))
        option = options[index]
        wordings = (option, option) if isinstance(option, str) else tuple(rng.sample(option, 2))
        chosen.append(str(index) if isinstance(option, str) else f"{index}.{option.index(wordings[0])}")
        slots[slot], summary_parts[slot] = (wording.format_map(slots) for wording in wordings)
    report = sentence(form.report[used].format_map(slots))
    slots.update(summary_parts)
    summary = rng.choice(form.summary).format_map(slots)
    facts = tuple(slots[slot] for slot in form.facts if slot in slots)
    if rng.random() >= detailed:
        return Point(kind, report, summary, facts, (), " ".join(chosen))
    # A detail may name what its point names too (a firm, say), so it has slots of its own.
    slots = Slots(rng, words, {})
    used = rng.randrange(len(form.detail))
    report += " " + sentence(form.detail[used].format_map(slots))
    summary += rng.choice(form.tail).format_map(slots)
    return Point(kind, report, summary, facts, (slots[form.detail_fact],), f"{' '.join(chosen)} +{used}")


def _filler(rng: Random, words: Words, budget: float, town: str) -> list[Paragraph]:
    """Paragraphs that hold no main point, of about ``budget`` tokens together, each of one kind and about one thing."""
    paragraphs: list[Paragraph] = []
    decks: dict[str, list[str]] = {kind: [] for kind in filler.FILLER}
    kind = ""
    while budget > 0:
        kind = rng.choice([k for k in decks if k != kind])
        topic = rng.choice(words.nouns)
        sentences: list[str] = []
        count = rng.randint(2, 6)
        if len(decks[kind]) < count:  # a form comes again only when nearly all of its kind have been used
            decks[kind] = rng.sample(filler.FILLER[kind], len(filler.FILLER[kind]))
        for _ in range(count):
            form = decks[kind].pop()
            sentences.append(sentence(form.format_map(Slots(rng, words, {"topic": topic, "town": town}))))
            budget -= _tokens(sentences[-1])
            if budget <= 0:
                break
        paragraphs.append(Paragraph(rng.choice(filler.FILLER_HEADINGS[kind]), sentences, kind))
    return paragraphs


def _place(rng: Random, points: Sequence[Point], paragraphs: list[Paragraph]) -> str:
    """Insert the main points into the paragraphs, the event first and the others in turn; returns where they stand."""
    paragraphs[0].sentences.insert(0, points[0].report)
    paragraphs[0].heading = rng.choice(KINDS["event"].headings)
    first = 1 if len(paragraphs) > 1 else 0
    places = sorted(rng.choices(range(first, len(paragraphs)), k=len(points) - 1))
    if points[-1].kind == "plan":
        places[-1] = len(paragraphs) - 1
    taken: dict[int, int] = {0: 1}
    for point, place in zip(points[1:], places, strict=True):
        paragraph = paragraphs[place]
        start = taken.get(place, 0)
        at = rng.randint(start, len(paragraph.sentences))
        paragraph.sentences.insert(at, point.report)
        taken[place] = at + 1
        if at == 0:
            paragraph.heading = rng.choice(KINDS[point.kind].headings)
    return " ".join(map(str, places))


def _laid_out(rng: Random, layout: str, domain: Domain, paragraphs: Sequence[Paragraph]) -> str:
    """The report as one text."""
    title = rng.choice(domain.titles)
    texts = [" ".join(p.sentences) for p in paragraphs]
    if layout == "headings":
        return "\n\n".join(f"## {p.heading}\n{text}" for p, text in zip(paragraphs, texts, strict=True))
    if layout == "minutes":
        return f"{title}\n\n" + "\n".join(f"({chr(97 + i % 26)}) {text}" for i, text in enumerate(texts))
    if layout == "memo":
        writer = f"{rng.choice(names.FIRST_NAMES)} {rng.choice(names.SURNAMES)}"
        return f"From: {writer}\nSubject: {title}\n\n" + "\n\n".join(texts)
    if layout == "block":
        return " ".join(texts)
    if layout == "bullets":
        return f"# {title}\n\n" + "\n".join(f"- {text}" for text in texts)
    return "\n\n".join(texts)


def _ask(rng: Random, report: str, count: int) -> tuple[str, str]:
    """The report with a request before or after it, and which request it is."""
    before = rng.random() < 0.5
    requests = wording.REQUESTS_BEFORE if before else wording.REQUESTS_AFTER
    index = rng.randrange(len(requests))
    request = requests[index].format(count=wording.COUNTS[count])
    return (f"{request}\n\n{report}", f"before {index}") if before else (f"{report}\n\n{request}", f"after {index}")


def _summary(rng: Random, points: Sequence[Point]) -> str:
    """The points in the order of their kinds, or in that of the report; leads that close a text only at its end."""
    told = list(points)
    if rng.random() < 0.7:
        told[1:] = sorted(told[1:], key=lambda p: wording.ORDER.index(p.kind))
    clauses = [told[0].summary]
    for point in told[1:]:
        closes = point is told[-1]
        leads = KINDS[point.kind].leads if closes or point.kind != "plan" else ("", "it mentions that ")
        clauses.append(rng.choice(leads) + point.summary)
    return " ".join(sentence(clause) + "." for clause in clauses)


def _facts(points: Sequence[Point]) -> list[str]:
    """What a summary must name: the facts of the points behind the event, then as much else as there is room for."""
    wanted = [fact for point in points[1:] for fact in point.facts]
    wanted += [*points[0].facts, *(fact for point in points for fact in point.details)]
    return list({fact.lower(): fact for fact in reversed(wanted)}.values())[::-1][:MOST_FACTS]


def score(check: Mapping[str, Any], answer: str) -> float:
    """The share of the facts that an answer names, halved where it copies a long run of the report."""
    plain = _plain(answer)
    named = sum(_names(plain, _plain(fact)) for fact in check["facts"])
    return named / len(check["facts"]) * (0.5 if _copies(answer, check.get("report", "")) else 1.0)


def _plain(text: str) -> str:
    """Lower case, single spaces, and one way of writing dates ("4 may") and thousands ("40 thousand")."""
    text = " ".join(text.lower().split())
    text = re.sub(r"\b(\d{1,3}),?000\b", r"\1 thousand", text)
    text = re.sub(r"\b(\d{1,2})(?:st|nd|rd|th)\b(?: of\b)?", r"\1", text)
    return re.sub(rf"(?<!\d )\b({'|'.join(names.MONTHS).lower()}) (\d{{1,2}})\b", r"\2 \1", text)


def _names(text: str, fact: str) -> bool:
    """Whether a text has a fact as whole words and whole numbers; a word may be in the plural."""
    plural = "s?" if fact[-1].isalpha() else ""
    return re.search(rf"(?<!\w)(?<!\d[.,]){re.escape(fact)}{plural}(?!\w)(?![.,]\d)", text) is not None


def _copies(answer: str, report: str) -> bool:
    words, source = answer.split(), report.split()
    run = max(COPIED_WORDS, int(COPIED_SHARE * len(source))) + 1
    runs = {tuple(source[i : i + run]) for i in range(len(source) - run + 1)}
    return any(tuple(words[i : i + run]) in runs for i in range(len(words) - run + 1))
