"""Scenes of the chat task set at home and on the way."""

from __future__ import annotations

from recipes.reference_pair.tasks.chat.scenes import Attribute, Scene, amount, at, by, clock, hued, on

PACKING = Scene(
    "packing", "packing list", "thing", "noun", "the {k}",
    ("Here is my packing list for the weekend.", "I am packing for a long trip.", "This is what we have to pack."),
    (
        hued("bag", "{v} bag", ("goes into the {v} bag", "belongs in the {v} bag", "is packed in the {v} bag"),
             ("Which bag does {x} go into?", "Into which bag did I put {x}?"), "go into the {v} bag"),
        amount("weight", "100 950", "grams", ("weighs {v}", "adds {v} to the load", "comes to {v} on the scales"),
               ("How much does {x} weigh?", "How heavy is {x}?")),
        by("carrier", "the carrier", ("is carried by {v}", "will be brought by {v}", "is in the care of {v}"),
           ("Who carries {x}?", "Who will bring {x}?")),
    ),
)  # fmt: skip
TRIP = Scene(
    "trip", "trip plan", "stop", "city", "the stop in {k}",
    ("We are planning a tour through several cities.", "Here is the plan of our trip.",
     "Our summer trip looks like this."),
    (
        on(("falls on a {v}", "is planned for {v}", "takes place on {v}"),
           ("On which day is {x}?", "What day did we plan for {x}?"), "fall on a {v}"),
        by("guide", "the guide", ("is led by {v}", "has {v} as a guide", "was arranged by {v}"),
           ("Who is the guide for {x}?", "Who leads {x}?")),
        amount("budget", "120 900", "euros", ("has a budget of {v}", "may cost up to {v}", "was estimated at {v}"),
               ("How much may {x} cost?", "What budget does {x} have?")),
        at("hotel", "2 40", ("includes a night in {v}", "is tied to a booking at {v}", "comes with a bed in {v}"),
           ("Which hotel goes with {x}?", "In which hotel do we sleep for {x}?")),
    ),
)  # fmt: skip
RECIPE = Scene(
    "recipe", "recipe", "ingredient", "food", "the {k}",
    ("I am copying a recipe from my aunt.", "Here is what I need for the stew.",
     "Let me give you the recipe for tonight."),
    (
        amount("amount", "20 900", "grams", ("amounts to {v}", "is measured at {v}", "has to make up {v}"),
               ("How much of {x} do I need?", "How many grams of {x} are needed?")),
        hued("bowl", "{v} bowl", ("waits in the {v} bowl", "goes into the {v} bowl", "is mixed in the {v} bowl"),
             ("Which bowl is for {x}?", "In which bowl do I put {x}?"), "go into the {v} bowl"),
        amount("time", "2 95", "minutes",
               ("must cook for {v}", "needs {v} on the stove", "should simmer for {v}"),
               ("How long must {x} cook?", "How many minutes does {x} need?")),
    ),
)  # fmt: skip
PLANTS = Scene(
    "plants", "plant diary", "plant", "plant", "the {k}",
    ("I keep a diary of my plants.", "These are my notes on the plants.",
     "You should know how I look after my plants."),
    (
        on(("gets its water on {v}", "is watered every {v}", "has to be watered on {v}"),
           ("On which day is {x} watered?", "When does {x} get its water?"), "are watered on {v}"),
        Attribute("place", "place", "{v}", "the place", ("stands in the {v}", "grows in the {v}",
                                                         "has its pot in the {v}"),
                  ("Where does {x} stand?", "In which room did I put {x}?"), "stand in the {v}"),
        amount("height", "11 240", "centimetres", ("is {v} tall", "has reached {v}", "measures {v} by now"),
               ("How tall is {x}?", "What height did I measure for {x}?")),
        by("giver", "the giver", ("was a present from {v}", "was given to me by {v}", "once belonged to {v}"),
           ("Who gave me {x}?", "From whom did I get {x}?")),
    ),
)  # fmt: skip
HOUSE = Scene(
    "rooms", "floor plan", "room", "place", "the {k}",
    ("We are renovating our house.", "Let me describe the rooms of the building.",
     "Here are the details of the rooms."),
    (
        hued("colour", "{v} walls", ("has {v} walls", "will be painted {v}", "has been given {v} paint"),
             ("What colour does {x} get?", "In which colour is {x} painted?"), "have {v} walls"),
        amount("area", "11 90", "square metres", ("measures {v}", "covers {v}", "has a size of {v}"),
               ("How large is {x}?", "How many square metres does {x} have?")),
        by("keeper", "the keeper", ("is looked after by {v}", "is kept tidy by {v}", "is the job of {v}"),
           ("Who looks after {x}?", "Who keeps {x} tidy?")),
        Attribute("floor material", "floor", "{v} floor", "the floor material",
                  ("has a floor of {v}", "is laid out with {v}", "was fitted with {v}"),
                  ("What is the floor of {x} made of?", "Which material is used in {x}?")),
    ),
)  # fmt: skip
RULES = Scene(
    "rules", "house rules", "rule", "nouns", "the rule about {k}",
    ("These are the rules of our house.", "Our flat has a few rules.", "Before you ask, here are the house rules."),
    (
        clock("time", "the time", ("starts to apply at {v}", "is in force from {v}", "begins at {v} every evening"),
              ("From what time does {x} apply?", "When does {x} begin?")),
        amount("fine", "2 95", "euros", ("carries a fine of {v}", "costs {v} when broken", "is worth {v} as a penalty"),
               ("What is the fine for {x}?", "How much do we pay for breaking {x}?")),
        by("author", "the author", ("was proposed by {v}", "was written by {v}", "goes back to {v}"),
           ("Who proposed {x}?", "Who wrote {x}?")),
    ),
)  # fmt: skip
CHORES = Scene(
    "chores", "chore rota", "chore", "chore", "the {k}",
    ("We share the chores at home.", "Here is the rota for this week.", "The work in the house is divided like this."),
    (
        by("person", "the person in charge", ("is done by {v}", "was assigned to {v}", "is a task for {v}"),
           ("Who does {x}?", "Who is in charge of {x}?")),
        on(("is due on {v}", "happens on {v}", "must be finished by {v}"),
           ("On which day is {x} due?", "When does {x} happen?"), "are due on {v}"),
        amount("duration", "11 99", "minutes", ("takes {v}", "lasts {v}", "keeps one busy for {v}"),
               ("How long does {x} take?", "How many minutes does {x} last?")),
    ),
)  # fmt: skip
TRAINS = Scene(
    "timetable", "timetable", "train", "city", "the train to {k}",
    ("I copied the timetable at the station.", "These are the trains of this morning.", "Here are our connections."),
    (
        clock("departure", "the departure time", ("leaves at {v}", "departs at {v}", "starts at {v} sharp"),
              ("When does {x} leave?", "At what time does {x} depart?")),
        at("platform", "2 24", ("stops at {v}", "waits on {v}", "can be boarded at {v}"),
           ("From which platform does {x} go?", "Which platform is right for {x}?")),
        amount("fare", "25 180", "euros", ("costs {v}", "has a fare of {v}", "is offered for {v}"),
               ("How much is a ticket for {x}?", "What does {x} cost?")),
        hued("line", "{v} line", ("runs on the {v} line", "uses the {v} line", "is marked {v} on the map"),
             ("Which line does {x} use?", "On which line does {x} run?"), "run on the {v} line"),
    ),
)  # fmt: skip
PETS = Scene(
    "pets", "shelter list", "animal", "pet", "{k}",
    ("I help at the animal shelter.", "Let me introduce the animals of the shelter.", "This is our list of animals."),
    (
        Attribute("species", "species", "{v}", "the species", ("is a {v}", "was brought in as a {v}",
                                                               "lives with us as a {v}"),
                  ("What kind of animal is {x}?", "Which species is {x}?")),
        amount("food", "11 450", "grams", ("eats {v} a day", "is given {v} of food", "gets {v} each morning"),
               ("How much does {x} eat?", "How many grams of food does {x} get?")),
        at("cage", "2 60", ("sleeps in {v}", "stays in {v}", "has moved to {v}"),
           ("Which cage is for {x}?", "In which cage does {x} sleep?")),
        by("adopter", "the adopter", ("will be adopted by {v}", "is promised to {v}", "has found a home with {v}"),
           ("Who adopts {x}?", "Who will take {x} home?")),
    ),
    again="this animal",
)  # fmt: skip

SCENES = (PACKING, TRIP, RECIPE, PLANTS, HOUSE, RULES, CHORES, TRAINS, PETS)
