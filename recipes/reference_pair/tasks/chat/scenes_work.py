"""Scenes of the chat task set at work, in clubs and in public places."""

from __future__ import annotations

from recipes.reference_pair.tasks.chat.scenes import Attribute, Scene, amount, at, by, clock, hued, on

INVENTORY = Scene(
    "inventory", "inventory", "item", "noun", "the {k}",
    ("We counted everything in the store room.", "Here is our inventory.",
     "This is what the store holds at the moment."),
    (
        at("shelf", "2 60", ("is on {v}", "can be found on {v}", "stands on {v}"),
           ("Which shelf is {x} on?", "On which shelf do I find {x}?"), "are on {v}"),
        by("owner", "the owner", ("belongs to {v}", "is owned by {v}", "is on loan from {v}"),
           ("Who owns {x}?", "Whom does {x} belong to?")),
        amount("price", "61 980", "euros", ("costs {v}", "is worth {v}", "was bought for {v}"),
               ("How much does {x} cost?", "What is {x} worth?")),
        hued("colour", "{v}", ("is painted {v}", "has a {v} label", "comes in {v}"),
             ("What colour is {x}?", "Which colour did I note for {x}?"), "are painted {v}"),
    ),
)  # fmt: skip
MEETING = Scene(
    "meeting", "meeting notes", "project", "noun", "the {k} project",
    ("These are my notes from the meeting.", "We met this morning to divide the work.",
     "Here is what the team decided."),
    (
        by("lead", "the lead", ("is handled by {v}", "is in the hands of {v}", "was given to {v}"),
           ("Who handles {x}?", "Who is responsible for {x}?")),
        on(("is due on {v}", "has to be ready by {v}", "must be delivered on {v}"),
           ("When is {x} due?", "By which day must {x} be ready?"), "are due on {v}", "the deadline"),
        at("room", "2 99", ("is discussed in {v}", "meets in {v}", "has moved to {v}"),
           ("Which room is used for {x}?", "In which room do we discuss {x}?")),
        amount("budget", "120 990", "hours", ("may take {v}", "was estimated at {v}", "has a budget of {v}"),
               ("How many hours may {x} take?", "How much time was planned for {x}?")),
    ),
)  # fmt: skip
CONTACTS = Scene(
    "contacts", "contact list", "contact", "person", "{k}",
    ("I want to keep my contacts in one place.", "Here are the people I work with.", "Please remember these contacts."),
    (
        at("extension", "101 990", ("can be reached at {v}", "answers calls on {v}", "uses {v}"),
           ("Which extension do I call for {x}?", "At which extension can I reach {x}?")),
        Attribute("city", "city", "{v}", "the city", ("lives in {v}", "has a flat in {v}", "is based in {v}"),
                  ("Where does {x} live?", "In which city does {x} live?"), "live in {v}"),
        Attribute("job", "job", "{v}", "the job", ("works as a {v}", "earns a living as a {v}", "was trained as a {v}"),
                  ("What is the job of {x}?", "What does {x} work as?")),
        on(("is free on {v}", "has time every {v}", "can meet us on {v}"),
           ("On which day is {x} free?", "When does {x} have time?"), "are free on {v}"),
    ),
    again="this contact", relative="who",
)  # fmt: skip
SETTINGS = Scene(
    "settings", "configuration", "setting", "identifier", "`{k}`",
    ("I changed the settings of our program.", "This is the configuration of the server.",
     "Our settings are as follows."),
    (
        Attribute("value", "int 2 999", "value {v}", "the value",
                  ("is set to {v}", "has the value {v}", "was changed to {v}"),
                  ("What is {x} set to?", "Which value does {x} have?")),
        Attribute("section", "noun", "section {v}", "the section",
                  ("belongs to the section {v}", "is listed under {v}", "stands in the {v} part of the file"),
                  ("Which section does {x} belong to?", "Under which heading do I find {x}?")),
        by("editor", "the editor", ("was edited by {v}", "is maintained by {v}", "was approved by {v}"),
           ("Who edited {x}?", "Who maintains {x}?")),
    ),
)  # fmt: skip
BUGS = Scene(
    "bugs", "bug list", "bug", "int 101 990", "bug {k}",
    ("Here are the bugs that are still open.", "We went through the bug list today.", "These bugs came in this week."),
    (
        Attribute("function", "identifier", "`{v}`", "the function",
                  ("sits in `{v}`", "is caused by `{v}`", "was traced to `{v}`"),
                  ("Which function causes {x}?", "Where in the code is {x}?")),
        by("reporter", "the reporter", ("was reported by {v}", "was found by {v}", "came from {v}"),
           ("Who reported {x}?", "Who found {x}?")),
        on(("should be fixed by {v}", "is scheduled for {v}", "has to be closed on {v}"),
           ("By which day should {x} be fixed?", "When is the fix of {x} due?"), "should be fixed by {v}"),
        at("priority", "2 40", ("is filed under {v}", "was raised to {v}", "carries {v}"),
           ("Which priority does {x} have?", "What priority did we give {x}?")),
    ),
)  # fmt: skip
LIBRARY = Scene(
    "library", "loan register", "book", "nouns", "the book about {k}",
    ("I run the library of our school.", "These books are out on loan.", "Here is the register of our loans."),
    (
        by("reader", "the reader", ("was borrowed by {v}", "is on loan to {v}", "was taken home by {v}"),
           ("Who borrowed {x}?", "Who has {x}?")),
        on(("must be back on {v}", "has to be returned by {v}", "is expected on {v}"),
           ("When must {x} be back?", "By which day must {x} be returned?"), "must be back on {v}"),
        amount("length", "101 980", "pages", ("has {v}", "is {v} long", "runs to {v}"),
               ("How many pages does {x} have?", "How long is {x}?")),
        hued("cover", "{v} cover", ("has a {v} cover", "is bound in {v}", "can be known by its {v} back"),
             ("What colour is the cover of {x}?", "Which cover does {x} have?"), "have a {v} cover"),
    ),
)  # fmt: skip
RANKING = Scene(
    "ranking", "league table", "team", "team", "the team of the {k}",
    ("The season is over, and this is the result.", "Here is the final table of our league.",
     "I follow a small league."),
    (
        amount("score", "11 130", "points", ("has {v}", "collected {v}", "finished with {v}"),
               ("How many points does {x} have?", "With how many points did {x} finish?")),
        Attribute("city", "city", "{v}", "the city", ("comes from {v}", "plays at home in {v}", "represents {v}"),
                  ("Where does {x} come from?", "Which city does {x} represent?")),
        by("coach", "the coach", ("is trained by {v}", "has {v} as its coach", "is led by {v}"),
           ("Who trains {x}?", "Who is the coach of {x}?")),
        hued("shirt", "{v} shirts", ("plays in {v}", "wears {v} shirts", "has chosen {v} as its colour"),
             ("Which colour does {x} wear?", "In which colour does {x} play?"), "play in {v}"),
    ),
)  # fmt: skip
ORDERS = Scene(
    "orders", "order sheet", "order", "person", "the order from {k}",
    ("Today's orders are in.", "I have to prepare several orders.", "Please keep these orders in mind."),
    (
        Attribute("goods", "nouns", "{v}", "the content", ("is for a box of {v}", "asks for {v}", "consists of {v}"),
                  ("What is {x} for?", "What does {x} consist of?")),
        amount("total", "101 990", "euros", ("comes to {v}", "adds up to {v}", "brings in {v}"),
               ("How much does {x} come to?", "What is the total of {x}?")),
        on(("is shipped on {v}", "has to leave by {v}", "should arrive on {v}"),
           ("When is {x} shipped?", "On which day do we send {x}?"), "are shipped on {v}", "the shipping day"),
        Attribute("city", "city", "{v}", "the destination", ("goes to {v}", "is sent to {v}", "is addressed to {v}"),
                  ("Where does {x} go?", "To which city do we send {x}?"), "go to {v}"),
    ),
)  # fmt: skip
MUSEUM = Scene(
    "museum", "catalogue", "object", "noun", "the {k}",
    ("I wrote a catalogue of our museum.", "These objects are on display.", "Our museum shows some unusual objects."),
    (
        Attribute("material", "material", "{v}", "the material", ("is made of {v}", "was worked in {v}",
                                                                  "consists of {v}"),
                  ("What is {x} made of?", "Which material is {x} made of?"), "are made of {v}"),
        Attribute("origin", "city", "{v}", "the origin", ("comes from {v}", "was discovered in {v}",
                                                          "was shipped from {v}"),
                  ("Where does {x} come from?", "In which city was {x} discovered?")),
        at("hall", "2 40", ("is shown in {v}", "stands in {v}", "can be seen in {v}"),
           ("Which hall is {x} in?", "In which hall can I see {x}?")),
        by("donor", "the donor", ("was donated by {v}", "is a gift from {v}", "was left to us by {v}"),
           ("Who donated {x}?", "From whom did we get {x}?")),
    ),
)  # fmt: skip
COURSES = Scene(
    "courses", "course programme", "course", "course", "the {k} course",
    ("The new programme of our club is out.", "I am looking at the evening courses.",
     "These courses start next month."),
    (
        by("teacher", "the teacher", ("is taught by {v}", "is given by {v}", "has {v} as its teacher"),
           ("Who teaches {x}?", "Who gives {x}?")),
        on(("is held on {v}", "takes place every {v}", "meets on {v}"),
           ("On which day is {x} held?", "When does {x} take place?"), "are held on {v}"),
        clock("start", "the start", ("begins at {v}", "starts at {v}", "opens its doors at {v}"),
              ("At what time does {x} begin?", "What time does {x} start?")),
        amount("fee", "25 240", "euros", ("costs {v}", "has a fee of {v}", "is offered for {v}"),
               ("How much is {x}?", "What does {x} cost?")),
    ),
)  # fmt: skip
LOST = Scene(
    "lost", "lost property list", "find", "noun", "the {k}",
    ("I work in the lost property office.", "People left many things behind this week.", "Here are the new finds."),
    (
        Attribute("place", "place", "{v}", "the place", ("was found in the {v}", "lay in the {v}",
                                                         "turned up in the {v}"),
                  ("Where was {x} found?", "In which room did {x} turn up?"), "were found in the {v}"),
        by("finder", "the finder", ("was handed in by {v}", "was picked up by {v}", "was brought to us by {v}"),
           ("Who handed in {x}?", "Who found {x}?")),
        at("box", "2 90", ("is kept in {v}", "was put into {v}", "is stored in {v}"),
           ("Which box is {x} in?", "In which box do we keep {x}?")),
        Attribute("month", "month", "{v}", "the month", ("was lost in {v}", "has been here since {v}",
                                                         "arrived in {v}"),
                  ("In which month was {x} lost?", "Since which month has {x} been here?"), "were lost in {v}"),
    ),
)  # fmt: skip

SCENES = (
    INVENTORY, MEETING, CONTACTS, SETTINGS, BUGS, LIBRARY, RANKING, ORDERS, MUSEUM, COURSES, LOST,
)  # fmt: skip
