"""How reports and summaries word their main points, and how a summary is asked for.

A report marks each main point by a cue of its kind; the summary words the same point otherwise. Forms of a summary are
clauses, so that a lead ("Overall, ...") may stand before them.
"""

from __future__ import annotations

from dataclasses import dataclass

REQUESTS_BEFORE = (
    "Summarize this report:",
    "Summarize the following report.",
    "What are the main points of the following text?",
    "Give me a short summary of this text.",
    "Please read the report below and summarize it.",
    "Write a short summary of the report below.",
    "Tell me what matters in this report:",
    "Sum up the text that follows.",
    "I need the key facts of this report in a few sentences.",
    "Here is a report. Summarize it in {count} sentences.",
    "Summarize the text below in {count} sentences:",
    "Which main points does this report make?",
)
REQUESTS_AFTER = (
    "Summarize the report above.",
    "Please summarize this text.",
    "What are the main points of this report?",
    "Give a short summary.",
    "Sum up what the text says.",
    "Write down the key facts in a few sentences.",
    "Can you summarize this for me?",
    "What does the report say, in short?",
    "Summarize the text above in {count} sentences.",
    "Give me a summary in {count} sentences.",
    "Which facts matter most here?",
    "Put the main points into a short summary.",
)
COUNTS = {3: "three", 4: "four", 5: "five"}


@dataclass(frozen=True)
class Kind:
    """One kind of main point.

    Attributes:
        parts: attributes of the domain that the forms have slots for, with the slot's name.
        facts: slots whose values a summary must name.
        report: sentences of the report, each with its own cue.
        summary: clauses of the summary.
        leads: what may stand before a clause of the summary.
        headings: of the paragraph in a report with headings.
        detail: sentences that may follow the cue in the report.
        tail: what the summary then adds to its clause.
        detail_fact: slot that both name.
    """

    parts: tuple[tuple[str, str], ...]
    facts: tuple[str, ...]
    report: tuple[str, ...]
    summary: tuple[str, ...]
    leads: tuple[str, ...]
    headings: tuple[str, ...]
    detail: tuple[str, ...]
    tail: tuple[str, ...]
    detail_fact: str


KINDS = {
    "event": Kind(
        parts=(("clause", "events"),),
        facts=("town", "when", "other", "noun", "Noun", "ident", "name", "n", "m", "version", "product", "firm"),
        report=(
            "on {when}, {clause}.",
            "{clause} on {when}.",
            "word came on {when} that {clause}.",
            "{town}, {when}. It is now certain that {clause}.",
            "{when} will be remembered: {clause}.",
            "this report goes back to {when}, when {clause}.",
        ),
        summary=("on {when}, {clause}", "{clause} on {when}", "the report tells how {clause} on {when}"),
        leads=("",),
        headings=("What happened", "The event", "Overview"),
        detail=(
            "{person} was the first to report it.",
            "The news was brought by {person}.",
            "It was {person} who spread the news.",
        ),
        tail=(", as reported by {person}", ", as {person} was the first to say"),
        detail_fact="person",
    ),
    "figure": Kind(
        parts=(("clause", "figures"),),
        facts=("n",),
        report=(
            "in total, {clause}.",
            "all in all, {clause}.",
            "the final count showed that {clause}.",
            "the main result was that {clause}.",
            "the key figure is this: {clause}.",
            "when everything was added up, {clause}.",
        ),
        summary=("{clause}",),
        leads=("", "overall, ", "altogether, ", "by the last count, ", "the figures show that ", "in the end, "),
        headings=("Result", "Figures", "In numbers"),
        detail=(
            "A year before, it had been {before}.",
            "The time before, the figure had stood at {before}.",
            "Last year, the same count gave {before}.",
        ),
        tail=(", against {before} a year earlier", ", compared with {before} the time before"),
        detail_fact="before",
    ),
    "cost": Kind(
        parts=(("cost", "costs"),),
        facts=("n",),
        report=(
            "the bill for {cost} came to {n} thousand {currency}.",
            "in the end, {n} thousand {currency} had to be paid for {cost}.",
            "the budget for {cost} was set at {n} thousand {currency}.",
            "as for the money, {cost} required {n} thousand {currency}.",
        ),
        summary=(
            "{cost} cost {n} thousand {currency}",
            "the price of {cost} was {n} thousand {currency}",
            "{n} thousand {currency} went into {cost}",
        ),
        leads=("", "", "", "it adds that ", "moreover, "),
        headings=("Cost", "Money", "Budget"),
        detail=(
            "Half of the money came from {firm}.",
            "A gift by {firm} covered half of this.",
            "{firm} was willing to pay half of the sum.",
        ),
        tail=(", half of it paid by {firm}", ", with half of it given by {firm}"),
        detail_fact="firm",
    ),
    "cause": Kind(
        parts=(("cause", "causes"), ("effect", "effects")),
        facts=("noun", "ident"),
        report=(
            "the cause of {effect} was {cause}.",
            "the reason for {effect} turned out to be {cause}.",
            "experts traced {effect} back to {cause}.",
            "it is now clear that {cause} led to {effect}.",
            "{effect} was brought about by {cause}.",
        ),
        summary=(
            "{effect} was due to {cause}",
            "{cause} caused {effect}",
            "{effect} happened because of {cause}",
            "{cause} was behind {effect}",
        ),
        leads=("", "", "", "it explains that ", "according to the text, "),
        headings=("Cause", "Why it happened", "Reasons"),
        detail=(
            "It was {person} who found this out.",
            "{person} had noticed it before anyone else.",
            "This was discovered by {person}.",
        ),
        tail=(", as {person} found out", ", which {person} noticed first"),
        detail_fact="person",
    ),
    "decision": Kind(
        parts=(("actor", "actors"), ("deed", "deeds")),
        facts=("noun", "ident"),
        report=(
            "most importantly, {actor} decided to {deed}.",
            "{actor} decided to {deed}.",
            "after a long debate, {actor} agreed to {deed}.",
            "it was decided by {actor} to {deed}.",
            "the decision of {actor} is to {deed}.",
        ),
        summary=(
            "{actor} will {deed}",
            "{actor} wants to {deed}",
            "{actor} has chosen to {deed}",
            "{actor} is going to {deed}",
        ),
        leads=("", "", "", "the text goes on that ", "furthermore, "),
        headings=("Decision", "What was decided", "Consequences"),
        detail=(
            "Only {person} was against it.",
            "{person} had advised against it.",
            "A protest came from {person}.",
        ),
        tail=(", although {person} is against it", ", despite the doubts of {person}"),
        detail_fact="person",
    ),
    "role": Kind(
        parts=(("role", "roles"),),
        facts=("name",),
        report=(
            "{name} was named {role}.",
            "the role of {role} went to {name}.",
            "everyone agreed on {name} as {role}.",
            "in a vote, {name} was picked as {role}.",
        ),
        summary=(
            "{name} became {role}",
            "{name} is now {role}",
            "the new {role} is {name}",
            "{name} was made {role}",
        ),
        leads=("", "", "", "it also says that ", "in addition, "),
        headings=("People", "New role", "Names"),
        detail=(
            "The office is held for {months} months.",
            "This is for {months} months at first.",
            "After {months} months, there will be a new choice.",
        ),
        tail=(", for {months} months", ", a task for {months} months"),
        detail_fact="months",
    ),
    "plan": Kind(
        parts=(("plan", "plans"),),
        facts=("date",),
        report=(
            "the next step is {plan}, set for {date}.",
            "{plan} will take place on {date}.",
            "looking ahead, {plan} is planned for {date}.",
            "on {date}, {plan} will follow.",
            "one date is fixed: {plan} is due on {date}.",
        ),
        summary=(
            "{plan} is scheduled for {date}",
            "{plan} comes on {date}",
            "{date} is the day of {plan}",
            "{plan} is expected on {date}",
        ),
        leads=("", "finally, ", "next, ", "in closing, ", "at the end, the text says that "),
        headings=("Next steps", "Outlook", "What comes next"),
        detail=(
            "{person} will be in charge of it.",
            "All questions about it go to {person}.",
            "It is being prepared by {person}.",
        ),
        tail=(", with {person} in charge", ", prepared by {person}"),
        detail_fact="person",
    ),
}
# Kinds that stand in a summary after the event, in this order unless it follows the text.
ORDER = ("figure", "cost", "cause", "decision", "role", "plan")
