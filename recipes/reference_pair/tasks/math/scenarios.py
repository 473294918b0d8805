"""Scenarios of the story problems: what may happen to a number of things, in several wordings each.

Slots: ``S`` who acts, ``his``/``him``, ``k`` a number, ``T`` the things, ``n`` ``B`` so many containers, ``m`` in each,
``P`` people.
"""

from __future__ import annotations

from dataclasses import dataclass

ALL_ENDINGS = ("end", "end", "share", "pack", "price", "missing", "daily", "more", "fewer", "times")


@dataclass(frozen=True)
class Scenario:
    """One setting of a story.

    Attributes:
        things: what is counted there, singular.
        boxes: containers or the like, singular.
        where: where the things are.
        has: the verb for having them.
        gone: what happens to those that leave.
        opening: the number of things at the start.
        packs: the same as a number of containers.
        gain, gain_packs, lose, lose_packs: events.
        any_thing: whether any noun fits.
        endings: the kinds of last steps that fit.
    """

    name: str
    things: tuple[str, ...]
    boxes: tuple[str, ...]
    where: str
    gone: str
    opening: tuple[str, ...]
    packs: tuple[str, ...]
    gain: tuple[str, ...]
    gain_packs: tuple[str, ...]
    lose: tuple[str, ...]
    lose_packs: tuple[str, ...]
    has: str = "has"
    any_thing: bool = False
    endings: tuple[str, ...] = ALL_ENDINGS


SCENARIOS = (
    Scenario(
        "shop",
        ("pencil", "notebook", "lamp", "mug", "candle", "basket", "umbrella", "vase", "clock"),
        ("box", "carton", "parcel"),
        "in the shop",
        "sold",
        ("{S} owns a shop with {v} {T}", "there are {v} {T} in the shop of {S}"),
        ("{S} owns a shop and opens {n} {B} with {m} {T} each", "in {his} shop, {S} has {n} {B} of {m} {T}"),
        ("{S} orders {k} more {T}", "a supplier brings {k} more {T}", "{S} finds {k} more {T} in the cellar"),
        ("{S} orders {n} {B} of {m} {T}", "{n} {B} arrive with {m} {T} in each"),
        ("{S} sells {k} {T}", "customers buy {k} {T}", "{S} sends back {k} broken {T}"),
        ("{n} customers buy {m} {T} each", "{S} sells {m} {T} to each of {n} {P}"),
        any_thing=True,
    ),
    Scenario(
        "warehouse",
        ("pump", "motor", "tyre", "chair", "table", "bicycle", "printer", "pipe", "radio", "window"),
        ("crate", "pallet", "container"),
        "in the warehouse",
        "shipped",
        ("{S} counts {v} {T} in a warehouse", "a warehouse run by {S} stores {v} {T}"),
        ("{S} counts {n} {B} with {m} {T} each in a warehouse", "a warehouse run by {S} stores {n} {B} of {m} {T}"),
        ("a truck delivers {k} {T}", "{S} takes in {k} more {T}", "{k} extra {T} come by train"),
        ("a ship brings {n} {B} with {m} {T} in each", "{S} unloads {n} {B} of {m} {T}"),
        ("{S} ships {k} {T} abroad", "a truck takes away {k} {T}", "{k} {T} are thrown out"),
        ("{n} trucks take away {m} {T} each", "{S} sends {m} {T} to each of {n} towns"),
        any_thing=True,
    ),
    Scenario(
        "farm",
        ("egg", "melon", "pumpkin", "cabbage", "potato", "tomato", "turnip", "onion", "pear", "peach"),
        ("crate", "sack", "basket"),
        "in the barn",
        "sold",
        ("{S} brings {v} {T} into the barn", "on a farm, {S} gathers {v} {T}"),
        ("{S} carries {n} {B} with {m} {T} each into the barn", "on a farm, {S} fills {n} {B} with {m} {T} each"),
        ("{S} picks {k} more {T}", "a neighbour adds {k} {T}", "the farm hands bring in {k} more {T}"),
        ("{S} fills {n} more {B} with {m} {T} each", "{n} helpers bring {m} {T} each"),
        ("{S} sells {k} {T} on the market", "mice spoil {k} {T}", "{S} feeds {k} {T} to the pigs"),
        ("{n} families buy {m} {T} each", "{S} gives {m} {T} to each of {n} {P}"),
    ),
    Scenario(
        "library",
        ("book", "magazine", "atlas", "novel", "comic", "map", "dictionary", "journal", "guide"),
        ("shelf", "stack", "box"),
        "in the library",
        "lent out",
        ("{S} looks after a library with {v} {T}", "a small library has {v} {T}, and {S} runs it"),
        ("{S} looks after a library with {n} {B} of {m} {T}", "{S} runs a library and sorts {n} {B} with {m} {T} each"),
        ("{S} buys {k} more {T} for the library", "readers return {k} {T}", "a school donates {k} {T}"),
        ("{n} readers return {m} {T} each", "{S} unpacks {n} {B} of {m} {T}"),
        ("{S} lends out {k} {T}", "readers borrow {k} {T}", "{S} removes {k} torn {T}"),
        ("{n} readers borrow {m} {T} each", "{S} lends {m} {T} to each of {n} {P}"),
    ),
    Scenario(
        "school",
        ("chair", "ruler", "brush", "crayon", "eraser", "marker", "folder", "textbook", "calculator"),
        ("pack", "drawer", "box"),
        "in the classroom",
        "handed out",
        ("{S} teaches in a classroom with {v} {T}", "{S}, a teacher, puts {v} {T} on the desk"),
        ("{S} teaches and brings {n} {B} of {m} {T} to class", "{S}, a teacher, opens {n} {B} with {m} {T} each"),
        ("the parents donate {k} {T}", "{S} borrows {k} {T} from another class", "the headmaster sends {k} more {T}"),
        ("{n} pupils bring {m} {T} each", "{S} opens {n} more {B} of {m} {T}"),
        ("{S} hands out {k} {T}", "the pupils lose {k} {T}", "{S} lends {k} {T} to another class"),
        ("{n} pupils take {m} {T} each", "{S} hands {m} {T} to each of {n} {P}"),
    ),
    Scenario(
        "kitchen",
        ("cookie", "muffin", "pancake", "dumpling", "sandwich", "pretzel", "waffle", "cupcake", "meatball"),
        ("tray", "plate", "pan"),
        "in the kitchen",
        "eaten",
        ("{S} makes {v} {T} in the kitchen", "for a party, {S} prepares {v} {T}"),
        ("{S} bakes {n} {B} with {m} {T} each", "for a party, {S} fills {n} {B} with {m} {T} each"),
        ("{S} makes {k} more {T}", "a guest brings {k} {T}", "{his} aunt adds {k} {T}"),
        ("{S} makes {n} more {B} of {m} {T}", "{n} guests bring {m} {T} each"),
        ("the guests eat {k} {T}", "{S} burns {k} {T}", "{S} puts {k} {T} in the freezer"),
        ("{n} guests eat {m} {T} each", "{S} serves {m} {T} to each of {n} {P}"),
    ),
    Scenario(
        "workshop",
        ("screw", "nail", "bolt", "hinge", "plank", "hook", "bracket", "spring", "gear", "washer"),
        ("tin", "jar", "bag"),
        "in the workshop",
        "used",
        ("{S} keeps {v} {T} in the workshop", "in a workshop, {S} finds {v} {T}"),
        ("{S} keeps {n} {B} of {m} {T} in the workshop", "in a workshop, {S} finds {n} {B} with {m} {T} each"),
        ("{S} buys {k} {T}", "a friend leaves {k} {T} on the bench", "{S} repairs {k} more {T}"),
        ("{S} buys {n} {B} of {m} {T}", "a friend brings {n} {B} with {m} {T} in each"),
        ("{S} uses {k} {T} for a roof", "{k} {T} break", "{S} drops {k} {T} into the drain"),
        ("{S} builds {n} boxes with {m} {T} each", "{n} doors need {m} {T} each, and {S} makes them"),
        any_thing=True,
    ),
    Scenario(
        "garden",
        ("tulip", "rose", "lily", "daisy", "shrub", "fern", "sunflower", "carrot", "lettuce"),
        ("row", "bed", "pot"),
        "in the garden",
        "picked",
        ("{S} has {v} {T} in the garden", "in spring, {S} plants {v} {T}"),
        ("{S} has {n} {B} of {m} {T} in the garden", "in spring, {S} plants {n} {B} with {m} {T} each"),
        ("{S} plants {k} more {T}", "{k} more {T} come up by themselves", "a gardener sets {k} {T} beside them"),
        ("{S} adds {n} {B} of {m} {T}", "{n} neighbours plant {m} {T} each"),
        ("{S} cuts {k} {T}", "the frost kills {k} {T}", "rabbits eat {k} {T}"),
        ("{n} snails eat {m} {T} each", "{S} picks {m} {T} for each of {n} {P}"),
    ),
    Scenario(
        "sports",
        ("ball", "racket", "helmet", "medal", "jersey", "whistle", "skate", "glove", "towel"),
        ("bag", "locker", "net"),
        "in the sports hall",
        "worn out",
        ("{S} trains a team that owns {v} {T}", "a sports club has {v} {T}, and {S} looks after them"),
        ("{S} trains a team that owns {n} {B} of {m} {T}", "{S} brings {n} {B} with {m} {T} each to a sports club"),
        ("a sponsor gives {k} {T}", "{S} gets {k} more {T}", "the city pays for {k} {T}"),
        ("{n} players bring {m} {T} each", "{S} gets {n} more {B} of {m} {T}"),
        ("the players lose {k} {T}", "{S} lends {k} {T} to another club", "{k} {T} fall apart"),
        ("{n} players take home {m} {T} each", "{S} passes {m} {T} to each of {n} {P}"),
    ),
    Scenario(
        "factory",
        ("toy", "bottle", "shoe", "screen", "battery", "button", "spoon", "chip", "tile", "valve"),
        ("machine", "line", "hall"),
        "in the factory",
        "delivered",
        ("a factory makes {v} {T}, and {S} counts them", "{S} works in a factory that has {v} {T} ready"),
        ("in a factory, {S} runs {n} {B} that make {m} {T} each", "{S} watches {n} {B} of a factory make {m} {T} each"),
        ("the night shift makes {k} more {T}", "{S} finishes {k} {T}", "another plant sends {k} {T}"),
        ("{n} more {B} make {m} {T} each", "{n} workers assemble {m} {T} each for {S}"),
        ("{S} rejects {k} {T}", "{k} {T} fail the test", "{S} delivers {k} {T}"),
        ("{n} dealers order {m} {T} each and get them", "{S} delivers {m} {T} to each of {n} {P}"),
        any_thing=True,
    ),
    Scenario(
        "savings",
        ("dollar", "euro", "coin", "franc", "pound"),
        ("week", "month", "day"),
        "in the savings box",
        "spent",
        ("{S} saves {v} {T}", "there are {v} {T} in the savings box of {S}"),
        ("for {n} {B}, {S} saves {m} {T} each time", "{S} saves up for {n} {B}, always {m} {T}"),
        ("{S} earns {k} {T}", "{his} grandmother gives {him} {k} {T}", "{S} finds {k} {T} in an old coat"),
        ("{S} works for {n} {B} and puts in {m} {T} each time", "{n} uncles give {him} {m} {T} each"),
        ("{S} spends {k} {T}", "{S} pays {k} {T} for a ticket", "{S} lends {his} brother {k} {T}"),
        ("{S} buys {n} gifts for {m} {T} each", "{S} pays {m} {T} to each of {n} {P}"),
        endings=("end", "share", "missing", "daily", "more", "fewer", "times"),
    ),
    Scenario(
        "trip",
        ("kilometre", "mile"),
        ("day", "stage", "leg"),
        "ahead",
        "covered",
        ("{S} sets out on a trip of {v} {T}", "{S} wants to cycle {v} {T} to the coast"),
        ("{S} plans a trip of {n} {B} with {m} {T} each", "{S} wants to hike for {n} {B}, {m} {T} each"),
        (
            "a detour adds {k} {T}",
            "{S} takes a wrong turn that costs {k} {T}",
            "a closed bridge makes it {k} {T} longer",
        ),
        ("{S} adds {n} {B} of {m} {T}", "{n} side trips add {m} {T} each"),
        ("{S} covers {k} {T}", "a bus takes {him} {k} {T}", "a short cut saves {k} {T}"),
        ("{S} travels {n} hours and covers {m} {T} in each", "{S} manages {n} {B} of {m} {T}"),
        has="faces",
        endings=("end_trip", "end_trip", "daily"),
    ),
    Scenario(
        "collection",
        ("stamp", "marble", "shell", "sticker", "badge", "postcard", "card", "stone", "feather", "model car"),
        ("album", "bag", "case"),
        "in the collection",
        "given away",
        ("{S} collects {T} and owns {v} of them", "the collection of {S} holds {v} {T}"),
        ("{S} has a collection of {n} {B} with {m} {T} each", "the collection of {S} fills {n} {B} with {m} {T} each"),
        ("{S} gets {k} {T} as a present", "{S} wins {k} {T}", "{his} cousin sends {k} {T}"),
        ("{S} swaps a game for {n} {B} of {m} {T}", "{n} friends give {him} {m} {T} each"),
        ("{S} gives {k} {T} to {his} sister", "{S} loses {k} {T}", "{S} trades {k} {T} for a book"),
        ("{S} gives {m} {T} to each of {n} {P}", "{n} cousins get {m} {T} each from {him}"),
        any_thing=True,
    ),
    Scenario(
        "bakery",
        ("roll", "bagel", "cake", "pie", "tart", "bun", "croissant", "scone", "doughnut"),
        ("tray", "rack", "basket"),
        "in the bakery",
        "sold",
        ("{S} bakes {v} {T} before sunrise", "a bakery starts the day with {v} {T}, baked by {S}"),
        ("{S} pulls {n} {B} with {m} {T} each from the oven", "the bakery of {S} opens with {n} {B} of {m} {T}"),
        ("{S} bakes {k} more {T}", "the oven yields {k} fresh {T}", "a second baker brings {k} {T}"),
        ("{S} bakes {n} more {B} of {m} {T}", "{n} apprentices bake {m} {T} each"),
        ("{S} sells {k} {T}", "a hotel collects {k} {T}", "{k} {T} fall on the floor"),
        ("{n} cafes take {m} {T} each", "{S} sells {m} {T} to each of {n} {P}"),
    ),
    Scenario(
        "museum",
        ("vase", "coin", "mask", "painting", "statue", "sword", "fossil", "photo", "helmet", "drum"),
        ("cabinet", "room", "chest"),
        "in the museum",
        "moved away",
        ("{S} guards a museum with {v} {T}", "a museum shows {v} {T}, and {S} guides the visitors"),
        ("{S} guards a museum with {n} {B} of {m} {T}", "{S} leads visitors through {n} {B} with {m} {T} each"),
        ("a collector donates {k} {T}", "{S} hangs up {k} more {T}", "the museum buys {k} {T}"),
        ("{S} opens {n} more {B} with {m} {T} each", "{n} donors give {m} {T} each"),
        ("the museum lends {k} {T} to Rome", "{S} stores {k} {T} in the attic", "thieves steal {k} {T}"),
        ("{n} schools borrow {m} {T} each", "{S} lends {m} {T} to each of {n} {P}"),
        any_thing=True,
    ),
    Scenario(
        "office",
        ("letter", "form", "file", "report", "invoice", "ticket", "message", "contract", "parcel"),
        ("pile", "binder", "tray"),
        "on the desk",
        "answered",
        ("{S} finds {v} {T} on the desk", "at the office, {v} {T} wait for {S}"),
        ("{S} finds {n} {B} with {m} {T} each on the desk", "at the office, {n} {B} of {m} {T} wait for {S}"),
        ("the mail brings {k} more {T}", "{S} prints {k} {T}", "a colleague leaves {k} {T}"),
        ("{n} colleagues leave {m} {T} each", "{S} gets {n} more {B} of {m} {T}"),
        ("{S} deals with {k} {T}", "{S} forwards {k} {T}", "a colleague takes over {k} {T}"),
        ("{n} colleagues take over {m} {T} each", "{S} passes {m} {T} to each of {n} {P}"),
        any_thing=True,
        endings=("end", "share", "pack", "daily", "more", "fewer", "times"),
    ),
    Scenario(
        "beach",
        ("shell", "pebble", "crab", "oyster", "bottle", "towel", "kite", "flag", "net"),
        ("pile", "bucket", "row"),
        "on the beach",
        "washed away",
        ("{S} lays out {v} {T} on the beach", "at the sea, {S} gathers {v} {T}"),
        ("{S} lays out {n} {B} of {m} {T} on the beach", "at the sea, {S} makes {n} {B} with {m} {T} each"),
        ("{S} digs up {k} more {T}", "the tide brings {k} {T}", "a fisherman hands {him} {k} {T}"),
        ("{n} waves bring {m} {T} each", "{S} makes {n} more {B} of {m} {T}"),
        ("a wave takes {k} {T}", "{S} throws {k} {T} back", "{S} buries {k} {T} in the sand"),
        ("{n} waves take {m} {T} each", "{S} offers {m} {T} to each of {n} {P}"),
    ),
    Scenario(
        "theatre",
        ("ticket", "seat", "costume", "poster", "wig", "hat", "cape", "lamp", "programme"),
        ("row", "rack", "bundle"),
        "in the theatre",
        "given out",
        ("{S} manages a theatre with {v} {T}", "before the show, {S} counts {v} {T} in the theatre"),
        ("{S} manages a theatre with {n} {B} of {m} {T}", "before the show, {S} sees {n} {B} with {m} {T} each"),
        ("{S} rents {k} more {T}", "the director asks for {k} more {T} and gets them", "an old stage gives {k} {T}"),
        ("{S} rents {n} more {B} of {m} {T}", "{n} actors bring {m} {T} each"),
        ("the actors damage {k} {T}", "{S} sells {k} {T}", "the dancers take {k} {T}"),
        ("{n} actors take {m} {T} each", "{S} reserves {m} {T} for each of {n} {P}, who take them"),
    ),
    Scenario(
        "hospital",
        ("bandage", "mask", "blanket", "pillow", "syringe", "towel", "gown", "thermometer", "cup"),
        ("pack", "cart", "cupboard"),
        "on the ward",
        "used up",
        ("{S} is a nurse on a ward with {v} {T}", "on a hospital ward, {S} stores {v} {T}"),
        ("{S} is a nurse and unpacks {n} {B} of {m} {T}", "on a hospital ward, {S} stores {n} {B} with {m} {T} each"),
        ("the pharmacy sends {k} {T}", "{S} fetches {k} more {T}", "another ward returns {k} {T}"),
        ("the pharmacy sends {n} {B} of {m} {T}", "{S} fetches {n} more {B} with {m} {T} each"),
        ("the doctors use {k} {T}", "{S} throws away {k} {T}", "{S} sends {k} {T} to the laundry"),
        ("{n} patients need {m} {T} each and get them", "{S} brings {m} {T} to each of {n} {P}"),
    ),
    Scenario(
        "camp",
        ("tent", "torch", "rope", "log", "apple", "blanket", "map", "can", "peg", "kettle"),
        ("bundle", "rucksack", "box"),
        "in the camp",
        "used up",
        ("{S} sets up a camp with {v} {T}", "in a summer camp, {S} counts {v} {T}"),
        ("{S} brings {n} {B} of {m} {T} to a camp", "in a summer camp, {S} counts {n} {B} with {m} {T} each"),
        ("{S} borrows {k} {T}", "a ranger brings {k} more {T}", "a new group arrives with {k} {T}"),
        ("{n} scouts arrive with {m} {T} each", "{S} unpacks {n} more {B} of {m} {T}"),
        ("{S} loses {k} {T} in the woods", "the storm ruins {k} {T}", "a group leaves with {k} {T}"),
        ("{n} scouts take {m} {T} each", "{S} deals out {m} {T} to each of {n} {P}"),
        any_thing=True,
    ),
)
