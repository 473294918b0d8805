"""Domains of reports from work, nature and sport."""

from __future__ import annotations

from recipes.reference_pair.tasks.summarization.domain import Domain

STORM = Domain(
    name="storm",
    titles=("Weather report", "After the storm", "Severe weather"),
    events=(
        (
            "a {adj} storm passed over {town}",
            "{town} was hit by a {adj} storm",
            "a {adj} storm reached the houses of {town}",
        ),
        (
            "heavy rain flooded {street} in {town}",
            "{street} in {town} was under water after heavy rain",
            "water filled {street} in {town} after heavy rain",
        ),
        (
            "hail the size of a {noun} fell on {town}",
            "{town} saw hail as large as a {noun}",
            "people in {town} met hail as big as a {noun}",
        ),
    ),
    figures=(
        ("{n} houses lost power", "the power failed in {n} houses", "{n} houses were left without power"),
        ("{n} trees fell", "the wind brought down {n} trees", "the storm felled {n} trees"),
        ("{n} people had to leave home", "{n} people were moved to safety", "shelter was found for {n} people"),
    ),
    effects=("the worst damage", "the power cut", "the flood in the cellar"),
    actors=("the mayor", "the fire service", "the power company"),
    deeds=(
        "clear the {noun} from {street}",
        "rebuild the {adj} {noun}",
        "hand out a {noun} to every household",
        "check the {adj} {noun} each week",
    ),
    roles=("head of the relief team", "chief of the shelter", "speaker of the fire service"),
    costs=("the clean-up", "the new dam", "the repair of the roofs"),
    plans=("the return to school", "a check of the dam", "the repair of the power line"),
)

MATCH = Domain(
    name="match",
    titles=("Match report", "Sports", "At the stadium"),
    events=(
        (
            "{town} beat {other} by {n} points to {m}",
            "{town} won against {other} with {n} points to {m}",
            "{town} defeated {other} by {n} to {m} points",
        ),
        (
            "the team of {town} reached the final thanks to {name}",
            "{town} got into the final thanks to {name}",
            "{name} took the team of {town} to the final",
        ),
        (
            "{name} of {town} won the race for the {adj} {noun}",
            "the race for the {adj} {noun} was won by {name} of {town}",
            "{name} of {town} came first in the race for the {adj} {noun}",
        ),
    ),
    figures=(
        ("{n} spectators watched", "the stands held {n} spectators", "the crowd numbered {n} spectators"),
        ("{n} runners crossed the line", "the line was crossed by {n} runners", "the finish saw {n} runners"),
        ("{n} minutes were played", "play went on for {n} minutes", "the contest took {n} minutes"),
    ),
    effects=("the slow start", "the long break", "the injury"),
    actors=("the coach", "the club", "the referee"),
    deeds=(
        "train with a {adj} {noun}",
        "sell the {noun} of the club",
        "put a {adj} {noun} into the changing room",
        "repair the {noun} at the stadium",
    ),
    roles=("captain of the team", "coach of the juniors", "president of the club"),
    costs=("the new pitch", "the trip", "the floodlight"),
    plans=("the return match", "the next training camp", "the cup final"),
)

COMPANY = Domain(
    name="company",
    titles=("Business news", "The quarter in review", "Company report"),
    events=(
        (
            "{firm} of {town} presented its quarter and a {adj} {noun}",
            "{firm} showed its quarter and a {adj} {noun} in {town}",
            "{firm} reported in {town} on its quarter and on a {adj} {noun}",
        ),
        (
            "{firm} took over a maker of {noun}s in {town}",
            "a maker of {noun}s in {town} was bought by {firm}",
            "{firm} became the owner of a maker of {noun}s in {town}",
        ),
        (
            "{firm} opened an office for {noun}s in {town}",
            "an office for {noun}s was opened by {firm} in {town}",
            "the town of {town} got an office for {noun}s from {firm}",
        ),
    ),
    figures=(
        ("sales rose to {n} million", "the firm reached sales of {n} million", "goods worth {n} million were sold"),
        ("profit stood at {n} thousand", "the firm earned {n} thousand", "a profit of {n} thousand was left"),
        ("{n} jobs were created", "the firm added {n} jobs", "the staff grew by {n} jobs"),
    ),
    effects=("the weak start", "the strong growth", "the fall in orders"),
    actors=("the company", "the board", "the manager"),
    deeds=(
        "sell a {adj} {noun} online",
        "stop the line of {noun}s",
        "offer a {adj} {noun} to every customer",
        "produce the {noun} abroad",
    ),
    roles=("head of sales", "chair of the board", "director of research"),
    costs=("the new machine", "the campaign", "the warehouse"),
    plans=("the meeting of the owners", "the launch of the shop", "the next report"),
)

FACTORY = Domain(
    name="factory",
    titles=("Incident report", "Incident at the factory", "Safety report"),
    events=(
        (
            "a {adj} {noun} caught fire in a factory in {town}",
            "a factory in {town} had a fire in a {adj} {noun}",
            "fire broke out in a {adj} {noun} at a factory in {town}",
        ),
        (
            "a tank of the factory on {street} in {town} leaked",
            "a leak was found in a tank of the factory on {street} in {town}",
            "liquid ran out of a tank at the factory on {street} in {town}",
        ),
        (
            "the {noun} of a mill in {town} broke",
            "a mill in {town} stood still after its {noun} broke",
            "a broken {noun} stopped a mill in {town}",
        ),
    ),
    figures=(
        ("{n} workers left the building", "the building was left by {n} workers", "the alarm sent {n} workers outside"),
        ("{n} litres were lost", "the plant lost {n} litres", "the loss came to {n} litres"),
        ("{n} machines were stopped", "the staff stopped {n} machines", "{n} machines stood still"),
    ),
    effects=("the accident", "the smoke", "the alarm"),
    actors=("the factory", "the safety officer", "the owner"),
    deeds=(
        "replace the {adj} {noun}",
        "inspect each {noun} every month",
        "fit a {adj} {noun} to the machine",
        "store the {noun} outside",
    ),
    roles=("head of safety", "leader of the inquiry", "foreman of the night shift"),
    costs=("the repair", "the new alarm", "the cleaning of the hall"),
    plans=("the restart of the line", "a safety drill", "the end of the inquiry"),
)

EXPEDITION = Domain(
    name="expedition",
    titles=("Expedition diary", "Notes from the field", "Science report"),
    events=(
        (
            "a team led by {name} found a {adj} {noun} near {town}",
            "{name} and a team discovered a {adj} {noun} near {town}",
            "a {adj} {noun} was found near {town} by a team under {name}",
        ),
        (
            "a ship of researchers left {town} with a {noun} on board",
            "a ship of researchers set out from {town} with a {noun} on board",
            "researchers sailed from {town} with a {noun} on their ship",
        ),
        (
            "scientists set up a camp for the {adj} {noun} outside {town}",
            "a camp for the {adj} {noun} was set up by scientists outside {town}",
            "scientists built a camp for the {adj} {noun} outside {town}",
        ),
    ),
    figures=(
        ("{n} samples were collected", "the team collected {n} samples", "{n} samples went into the boxes"),
        ("the depth was {n} metres", "the team measured a depth of {n} metres", "the drill went down {n} metres"),
        ("{n} species were recorded", "the list grew to {n} species", "the team noted {n} species"),
    ),
    effects=("the late return", "the strange signal", "the discovery"),
    actors=("the team", "the captain", "the institute"),
    deeds=(
        "study the {adj} {noun} for a year",
        "leave a {noun} at the camp",
        "send the {adj} {noun} to a laboratory",
        "map the area around the {noun}",
    ),
    roles=("leader of the next trip", "keeper of the samples", "head of the laboratory"),
    costs=("the ship", "the drill", "the winter camp"),
    plans=("the second trip", "a talk about the find", "the opening of the boxes"),
)

RELEASE = Domain(
    name="release",
    titles=("Release notes", "Software news", "A new version"),
    events=(
        (
            "developers in {town} released version {version} of {product}",
            "version {version} of {product} was released by developers in {town}",
            "{product} came out in version {version}, made by developers in {town}",
        ),
        (
            "{product} got a new function, `{ident}`, at a meeting in {town}",
            "a new function, `{ident}`, was added to {product} at a meeting in {town}",
            "a meeting in {town} gave {product} a new function, `{ident}`",
        ),
        (
            "{name} of {town} published a faster `{ident}` for {product}",
            "a faster `{ident}` for {product} was published by {name} of {town}",
            "{product} received a faster `{ident}` from {name} of {town}",
        ),
    ),
    figures=(
        ("{n} bugs were fixed", "the authors fixed {n} bugs", "fixes were made for {n} bugs"),
        ("{n} tests were added", "the authors added {n} tests", "the suite grew by {n} tests"),
        ("{n} people sent changes", "changes came from {n} people", "the authors numbered {n} people"),
    ),
    effects=("the crash", "the slow start", "the wrong output"),
    actors=("the project", "the maintainer", "the core team"),
    deeds=(
        "remove the function `{ident}`",
        "rename the option `{ident}`",
        "rewrite `{ident}` from scratch",
        "keep `{ident}` for another year",
    ),
    roles=("maintainer of the parser", "release manager", "editor of the manual"),
    costs=("the server", "the security review", "the new manual"),
    plans=("the next release", "a meeting of the users", "the end of support"),
    causes=(
        "a bug in `{ident}`",
        "a wrong default of `{ident}`",
        "a missing check in `{ident}`",
        "a {adj} call of `{ident}`",
        "a typing error in `{ident}`",
    ),
)

HARVEST = Domain(
    name="harvest",
    titles=("Harvest report", "From the farms", "News from the fields"),
    events=(
        (
            "farmers around {town} brought in a {adj} harvest",
            "a {adj} harvest was brought in around {town}",
            "the fields around {town} gave a {adj} harvest",
        ),
        (
            "{name} of {town} harvested the first field with a new {noun}",
            "{name} of {town} cut the first field with a new {noun}",
            "the first field was cut by {name} of {town} with a new {noun}",
        ),
        (
            "the apple market of {town} opened with a {adj} {noun}",
            "a {adj} {noun} opened the apple market of {town}",
            "{town} began its apple market with a {adj} {noun}",
        ),
    ),
    figures=(
        ("{n} tonnes of wheat were stored", "the barns took in {n} tonnes of wheat", "the wheat weighed {n} tonnes"),
        ("{n} crates were filled", "pickers filled {n} crates", "the fruit filled {n} crates"),
        ("{n} farms took part", "the work involved {n} farms", "the number of farms was {n}"),
    ),
    effects=("the poor yield", "the early start", "the high price"),
    actors=("the farmers' union", "the ministry", "the village"),
    deeds=(
        "share the {adj} {noun}",
        "plant a {noun} on every farm",
        "dry the grain in a {adj} {noun}",
        "rent a {noun} for the autumn",
    ),
    roles=("head of the union", "speaker of the farmers", "manager of the mill"),
    costs=("the barn", "the new tractor", "the seed"),
    plans=("the harvest feast", "the sowing of the winter grain", "the sale of the apples"),
)

RESCUE = Domain(
    name="rescue",
    titles=("Rescue report", "A rescue", "From the rescue service"),
    events=(
        (
            "{name} was rescued from a {adj} {noun} in {town}",
            "helpers in {town} saved {name} from a {adj} {noun}",
            "a team in {town} freed {name} from a {adj} {noun}",
        ),
        (
            "a boat with a {adj} {noun} sank off {town}",
            "the sea off {town} took a boat with a {adj} {noun}",
            "a boat that carried a {adj} {noun} went down off {town}",
        ),
        (
            "a walker from {town} was found next to a {noun}",
            "searchers found a walker from {town} next to a {noun}",
            "a walker from {town} was discovered next to a {noun}",
        ),
    ),
    figures=(
        ("{n} helpers were on duty", "the search needed {n} helpers", "the number of helpers was {n}"),
        ("{n} minutes went by before help came", "help came after {n} minutes", "the wait for help was {n} minutes"),
        ("{n} calls reached the service", "the service took {n} calls", "people made {n} calls"),
    ),
    effects=("the emergency", "the long search", "the fall"),
    actors=("the rescue service", "the coast guard", "the village"),
    deeds=(
        "buy a {adj} {noun} for the team",
        "mark the path with a {noun}",
        "practise with the {adj} {noun}",
        "put up a {noun} at the cliff",
    ),
    roles=("leader of the team", "head of the service", "trainer of the helpers"),
    costs=("the helicopter", "the search", "the new boat"),
    plans=("a training day", "the repair of the path", "the thank-you party"),
)

DOMAINS = (STORM, MATCH, COMPANY, FACTORY, EXPEDITION, RELEASE, HARVEST, RESCUE)
