"""Domains of reports from town life: council, school, museum, hospital, court and traffic."""

from __future__ import annotations

from recipes.reference_pair.tasks.summarization.domain import Domain

COUNCIL = Domain(
    name="council",
    titles=("News from the town council", "Council meeting", "From the town hall"),
    events=(
        (
            "the town council of {town} met to discuss the {adj} {noun}",
            "the council of {town} held a meeting about the {adj} {noun}",
            "councillors in {town} talked about the {adj} {noun}",
        ),
        (
            "the town council of {town} voted on a new {noun}",
            "a vote on a new {noun} was held by the council of {town}",
            "councillors in {town} took a vote on a new {noun}",
        ),
        (
            "{name} presented a plan for the {noun} to the council of {town}",
            "the council of {town} heard a plan for the {noun} from {name}",
            "{name} told councillors in {town} about a plan for the {noun}",
        ),
    ),
    figures=(
        (
            "{n} residents signed the petition",
            "the petition was signed by {n} residents",
            "the petition gathered {n} signatures",
        ),
        ("{n} people attended the meeting", "the meeting drew {n} people", "the audience numbered {n} people"),
        ("{n} letters reached the town hall", "the town hall received {n} letters", "residents sent {n} letters"),
    ),
    effects=("the long debate", "the delay", "the quarrel in the hall"),
    actors=("the council", "the mayor", "the planning committee"),
    deeds=(
        "repair the {adj} {noun}",
        "buy a new {noun}",
        "close the {noun} on {street}",
        "move the {adj} {noun} to {street}",
    ),
    roles=("head of the committee", "speaker of the council", "clerk of the town"),
    costs=("the new roof", "the repair of the town hall", "the public park"),
    plans=("the next meeting", "a public hearing", "the second vote"),
)

FESTIVAL = Domain(
    name="festival",
    titles=("School festival", "A festival at school", "News from the school"),
    events=(
        (
            "the school on {street} in {town} held its {adj} festival",
            "the {adj} festival of the school on {street} took place in {town}",
            "pupils on {street} in {town} celebrated a {adj} festival",
        ),
        (
            "the school choir of {town} sang a song about a {noun}",
            "a song about a {noun} was performed by the school choir of {town}",
            "the choir of the school in {town} presented a song about a {noun}",
        ),
        (
            "pupils in {town} opened a show called The {Noun}",
            "a show called The {Noun} was opened by pupils in {town}",
            "the school in {town} put on a show called The {Noun}",
        ),
    ),
    figures=(
        ("{n} visitors came to the school", "the school welcomed {n} visitors", "the number of visitors was {n}"),
        ("{n} cakes were sold", "the stalls sold {n} cakes", "visitors bought {n} cakes"),
        ("{n} pupils took part", "the festival brought {n} pupils together", "the number of pupils on stage was {n}"),
    ),
    effects=("the late start", "the change of place", "the short power cut"),
    actors=("the school", "the parents' club", "the head teacher"),
    deeds=(
        "spend the money on a {adj} {noun}",
        "build a {noun} behind the school",
        "paint the {adj} {noun}",
        "give the {noun} to the youngest class",
    ),
    roles=("leader of the choir", "head of the drama club", "speaker of the pupils"),
    costs=("the stage", "the new piano", "the school garden"),
    plans=("the summer concert", "a second show", "the visit of the partner school"),
)

MUSEUM = Domain(
    name="museum",
    titles=("At the museum", "A new exhibition", "Museum news"),
    events=(
        (
            "the museum of {town} opened an exhibition about the {adj} {noun}",
            "an exhibition about the {adj} {noun} opened at the museum of {town}",
            "visitors in {town} saw the first day of an exhibition about the {adj} {noun}",
        ),
        (
            "{name} gave an old {noun} to the museum of {town}",
            "the museum of {town} received an old {noun} from {name}",
            "an old {noun} came to the museum of {town} as a gift of {name}",
        ),
        (
            "the museum of {town} showed a {adj} {noun} for the first time",
            "a {adj} {noun} was shown for the first time at the museum of {town}",
            "the first showing of a {adj} {noun} took place at the museum of {town}",
        ),
    ),
    figures=(
        ("{n} objects are on display", "the rooms hold {n} objects", "the display is made up of {n} objects"),
        ("{n} guests saw the rooms", "the rooms were seen by {n} guests", "the museum counted {n} guests"),
        ("{n} tickets were sold", "the desk sold {n} tickets", "visitors bought {n} tickets"),
    ),
    effects=("the long queue", "the damage in the hall", "the great interest"),
    actors=("the museum", "the director", "the board of friends"),
    deeds=(
        "restore the {adj} {noun}",
        "lend the {noun} to a school",
        "keep the {adj} {noun} in the main hall",
        "buy a second {noun}",
    ),
    roles=("curator of the collection", "director of the museum", "keeper of the archive"),
    costs=("the glass case", "the new wing", "the lighting"),
    plans=("a guided tour", "the closing party", "a talk by the curator"),
)

HOSPITAL = Domain(
    name="hospital",
    titles=("Hospital news", "A new ward", "From the hospital"),
    events=(
        (
            "the hospital of {town} opened a ward named after {name}",
            "a ward named after {name} was opened at the hospital of {town}",
            "the first patients in {town} entered a ward named after {name}",
        ),
        (
            "doctors in {town} tested a {adj} {noun}",
            "a {adj} {noun} was tested by doctors in {town}",
            "the hospital of {town} made a test of a {adj} {noun}",
        ),
        (
            "the hospital of {town} put a new {noun} into service",
            "a new {noun} went into service at the hospital of {town}",
            "nurses in {town} started to work with a new {noun}",
        ),
    ),
    figures=(
        ("{n} beds are ready", "the house offers {n} beds", "the number of beds is {n}"),
        ("{n} patients were treated", "the staff treated {n} patients", "help was given to {n} patients"),
        ("{n} nurses were hired", "the hospital hired {n} nurses", "the staff grew by {n} nurses"),
    ),
    effects=("the long wait", "the late opening", "the rise in costs"),
    actors=("the hospital", "the chief doctor", "the health board"),
    deeds=(
        "replace the {adj} {noun}",
        "order a second {noun}",
        "train the staff on the {noun}",
        "place a {adj} {noun} in every room",
    ),
    roles=("head of the ward", "chief nurse", "director of training"),
    costs=("the children's room", "the new kitchen", "the garden on the roof"),
    plans=("an open day", "the move of the kitchen", "the training of the staff"),
)

COURT = Domain(
    name="court",
    titles=("In court", "A court case", "From the courtroom"),
    events=(
        (
            "the court of {town} heard the case of {name} about a {adj} {noun}",
            "the case of {name} about a {adj} {noun} came before the court of {town}",
            "a judge in {town} dealt with the case of {name} about a {adj} {noun}",
        ),
        (
            "{name} went to court in {town} over a lost {noun}",
            "a court in {town} heard the complaint of {name} over a lost {noun}",
            "{name} asked a judge in {town} for help over a lost {noun}",
        ),
        (
            "a shop in {town} was taken to court for selling a {adj} {noun}",
            "a court in {town} tried a shop that had sold a {adj} {noun}",
            "the sale of a {adj} {noun} brought a shop in {town} to court",
        ),
    ),
    figures=(
        ("{n} witnesses were heard", "the court heard {n} witnesses", "the number of witnesses was {n}"),
        ("{n} pages of evidence were read", "the evidence ran to {n} pages", "the judge read {n} pages of evidence"),
        ("{n} days passed before the ruling", "the ruling took {n} days", "the case lasted for {n} days"),
    ),
    effects=("the dispute", "the break in the trial", "the loss"),
    actors=("the court", "the judge", "the owner"),
    deeds=(
        "return the {adj} {noun}",
        "pay for the {noun}",
        "examine the {adj} {noun} again",
        "keep the {noun} as evidence",
    ),
    roles=("lawyer of the family", "expert of the court", "speaker of the court"),
    costs=("the damage", "the trial", "the expert's work"),
    plans=("the appeal", "the next hearing", "the written ruling"),
)

TRAFFIC = Domain(
    name="traffic",
    titles=("Traffic report", "On the road", "News for drivers"),
    events=(
        (
            "work on {street} in {town} began with a {adj} {noun}",
            "builders in {town} started work on {street} with a {adj} {noun}",
            "a {adj} {noun} marked the start of work on {street} in {town}",
        ),
        (
            "{town} opened a cycle path along {street}",
            "a cycle path along {street} was opened in {town}",
            "cyclists in {town} got a path along {street}",
        ),
        (
            "a new tram line linked {town} with {other}",
            "{town} was joined to {other} by a new tram line",
            "the first tram went from {town} to {other}",
        ),
    ),
    figures=(
        ("{n} cars were counted in an hour", "counters saw {n} cars in an hour", "{n} cars passed every hour"),
        ("{n} metres of road were finished", "workers finished {n} metres of road", "the new road measures {n} metres"),
        ("{n} passengers used the line", "the line carried {n} passengers", "the number of passengers rose to {n}"),
    ),
    effects=("the traffic jam", "the long detour", "the noise at night"),
    actors=("the town", "the road office", "the builder"),
    deeds=(
        "set up a {noun} on {street}",
        "remove the {adj} {noun}",
        "test a {adj} {noun} at the crossing",
        "widen the road next to the {noun}",
    ),
    roles=("head of the road office", "manager of the works", "chief planner"),
    costs=("the bridge", "the crossing", "the new surface"),
    plans=("the opening of the bridge", "the second stage of the work", "a test of the lights"),
)

DOMAINS = (COUNCIL, FESTIVAL, MUSEUM, HOSPITAL, COURT, TRAFFIC)
