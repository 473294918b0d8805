"""Plain turns of the chat task: a newcomer's prompts, answered in a few sentences that hold no fact of the prompt."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from recipes.reference_pair.tasks.base import Example, Words
from recipes.reference_pair.tasks.chat.scenes import NAMES, listed

ACTIVITIES = (
    "learning a language", "cooking for friends", "sleeping better", "saving money", "writing a letter",
    "keeping a diary", "growing tomatoes", "running a marathon", "painting a wall", "reading more books",
    "moving house", "giving a speech", "finding a job", "getting up early", "planning a trip", "taking photographs",
    "making new friends", "studying for an exam", "baking bread", "training a dog",
)  # fmt: skip
EVENTS = listed("party picnic wedding concert birthday weekend journey dinner meeting garden festival workshop reunion")
MOODS = listed("tired bored nervous lonely sad restless lazy confused worried angry gloomy unhappy")
PLACES = listed("library museum market harbour bakery theatre station village castle beach forest school bridge")

# Of every intent: the wordings of the prompt, then the sentences of the answer by place, the last two optional.
INTENTS: dict[str, tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]] = {
    "greeting": (
        ("How are you?", "How are you doing today?", "Is anybody there?", "Nice to meet you!", "What's up?",
         "Can you hear me?"),
        (
            ("Hello! It is good to hear from you.", "Hi there, and welcome!", "Good to see you here.",
             "Hello, I am listening."),
            ("I am doing well, thank you.", "Everything is fine on my side.", "I am ready to help.",
             "I feel well today."),
            ("What would you like to talk about?", "What can I do for you?", "How is your day so far?",
             "Do you have a question?"),
        ),
    ),
    "about": (
        ("Tell me something about {ns}.", "What do you know about {ns}?", "Talk to me about {ns}.",
         "Say a few words about {ns}.",
         "Give me some information on {ns}."),
        (
            ("There is more to say about {ns} than one might think.", "Many people like to talk about {ns}.",
             "The {n} is a subject with a long history.", "With pleasure, {ns} are an interesting topic."),
            ("Some of them are {a}, and others are {b}.", "A good one is {a} but rarely {b}.",
             "In most cases they look {a}, at least at first sight.", "Experts say that a {a} one lasts longer."),
            ("They can be found in many places around the world.", "People have used them for a very long time.",
             "Not everybody needs one, but few would give theirs away.", "It is easy to learn more from a book."),
            ("Which part interests you the most?", "Would you like to hear more?", "I could also give you an example."),
        ),
    ),
    "explain": (
        ("Explain what {an} is.", "What is {an}?", "What does the word {n} mean?", "Could you explain the word {n}?",
         "How would you describe {an} to a child?"),
        (
            ("In simple words, {an} is a thing that serves a clear purpose.", "The word {n} has more than one meaning.",
             "Think of {an} as a part of something larger.", "Put briefly, {an} is what makes some work easier."),
            ("It is often {a}, although it can also be {b}.", "A typical one is {a} and does not change much.",
             "You know it by its {a} form.", "Most people would call it {a}."),
            ("In daily life we use the word without much thought.", "The exact sense depends on who is speaking.",
             "A child learns it by seeing several of them.", "Different trades give it a different sense."),
            ("I hope that this makes it clearer.", "Does this explanation help you?",
             "Ask again if it is still not clear."),
        ),
    ),
    "tips": (
        ("Give me three tips for {g}.", "What should I know about {g}?", "Do you have any advice on {g}?",
         "How do I get better at {g}?", "I need some tips for {g}."),
        (
            ("First, start small and do not expect too much.", "To begin with, set yourself a clear goal.",
             "The first step is to make a simple plan.", "At the start, ask somebody with experience."),
            ("Second, practise a little every day.", "Then choose a time that suits you and keep to it.",
             "After that, write down what works well.", "Next, find a friend who joins you."),
            ("Finally, be patient with yourself.", "In the end, what counts is that you enjoy it.",
             "Last but not least, take a break now and then.", "Above all, never give up after one bad day."),
            ("With that, {g} will soon feel natural.", "I wish you success with {g}.", "Let me know how it goes."),
        ),
    ),
    "plan": (
        ("Can you help me plan a {e}?", "I want to plan a {e}.", "How should I prepare a {e}?",
         "Let us plan a {e} together.",
         "What do I need for a {e}?"),
        (
            ("I would be glad to help with your {e}.", "A {e} is a wonderful idea.",
             "Of course, let us begin with the basics."),
            ("First decide on a date and on how many people will come.",
             "Begin with a list of everyone who takes part.",
             "To start with, think about the time and the money you have."),
            ("Then look for a place that is large enough.", "After that, divide the work among your friends.",
             "Next, write down what has to be bought."),
            ("In the last days, check the weather and call everybody once more.", "Keep one hour free for surprises.",
             "Finally, leave some time to rest before it begins."),
            ("When should the {e} take place?", "Do you already have a date in mind?", "Who else will help you?"),
        ),
    ),
    "self": (
        ("Who are you?", "What can you do?", "What are you good at?", "Are you a person?", "Tell me about yourself."),
        (
            ("I am a small language model.", "I am a program that writes text.",
             "You are talking to a very small model."),
            ("I can answer questions about things that you have told me.",
             "My strength is finding details in a conversation.",
             "If you give me a list, I can look things up in it."),
            ("I also write short functions and solve simple problems.", "Besides, I can sum up a report.",
             "A little arithmetic is possible as well."),
            ("Please do not trust me with important facts.", "I make mistakes, so check what I say.",
             "What would you like to try first?"),
        ),
    ),
    "story": (
        ("Tell me a short story about a {n}.", "Write a story about a {n}.", "I would like to hear a tale about a {n}.",
         "Make up a story in which a {n} appears.", "Can you tell my son a story about a {n}?"),
        (
            ("Once upon a time there was a {a} {n}.", "Long ago, in a small town, {p} found a {n}.",
             "There was once a {n} that nobody wanted."),
            ("Every day people walked past and paid no attention to it.", "At first it seemed to be of no use at all.",
             "It stood in the rain and waited for a friend."),
            ("Then one morning {q} came along and took it home.", "But one night a {b} wind blew through the streets.",
             "Suddenly a {b} voice called from the garden."),
            ("From that day on, the whole town came to see the {n}.", "In the end, everyone learned to be kind.",
             "And so the {n} was never alone again."),
        ),
    ),
    "mood": (
        ("I am {f} today.", "I feel a bit {f}.", "Why am I so {f}?", "My friend is {f}. What can I do?",
         "Today everybody is {f}."),
        (
            ("Thank you for telling me.", "It is quite normal to be {f} at times.",
             "I understand, such days happen to all of us."),
            ("Often it helps to go for a walk.", "A warm drink and some music can do wonders.",
             "Perhaps a talk with a close friend would be good."),
            ("Try to think of one thing that went well.", "There is no need to decide anything right now.",
             "Tomorrow things may look different."),
            ("Would you like to tell me more?", "What happened before that?", "I am here if you want to talk."),
        ),
    ),
    "place": (
        ("Describe a {l}.", "Write a few sentences about a {l}.", "What can one see at a {l}?",
         "Why do people visit a {l}?",
         "Imagine a {l} and tell me about it."),
        (
            ("The {l} lies quietly in the morning light.", "A {l} is a place with many faces.",
             "Imagine an old {l} at the edge of a town."),
            ("People come and go, and some of them stop to talk.", "A {a} {n} stands near the entrance.",
             "Somewhere a door opens, and a child laughs."),
            ("In the afternoon it grows warm and calm.", "Around noon there is hardly a free seat.",
             "Later the first lamps are lit."),
            ("It is easy to spend a whole day there.", "Those who have been there once like to return.",
             "At night only the wind is left."),
        ),
    ),
    "thanks": (
        ("Thank you for your help.", "Thanks a lot!", "That was very useful.", "Goodbye!", "I have to go now."),
        (
            ("You are very welcome.", "It was a pleasure.", "I am glad that I could help."),
            ("Come back whenever you have a question.", "I am here when you need me again.",
             "Next time we can try something new."),
            ("Have a nice day!", "Take care of yourself.", "Until then, all the best."),
        ),
    ),
    "compare": (
        ("What is the difference between {an} and {am}?", "Compare {an} with {am}.", "Which is better, {an} or {am}?",
         "Should I choose {an} or {am}?", "Do I need {an} if I have {am}?"),
        (
            ("At first sight, {an} and {am} have little in common.", "That depends on what you want to do.",
             "Both have their place, so the choice is not easy."),
            ("One could say that the {n} is more {a}.", "As a rule, the {n} is the {a} choice.",
             "Many would choose the {n} because it is {a}."),
            ("The {m}, on the other hand, tends to be {b}.", "By contrast, people call the {m} rather {b}.",
             "If you need something {b}, take the {m}."),
            ("What do you want to use it for?", "In the end it is a matter of taste.",
             "I would try both before deciding."),
        ),
    ),
}  # fmt: skip
GREETINGS = ("", "", "Hi!", "Hello,", "Good morning.", "Hey there.", "Hello again.", "A question for you.")
ENDINGS = ("", "", "Please keep it short.", "Thanks!", "I am new here.", "Take your time.", "Use simple words.")
BARE = ("greeting", "thanks", "mood", "self")  # intents to which no such ending belongs


def article(word: str) -> str:
    """The word with "a" or "an", by its sound as far as its first letters tell it."""
    silent = word.startswith(("hour", "honest", "honour", "heir"))
    consonant = word.startswith(("use", "usa", "usu", "uni", "eu", "one", "once", "util"))
    consonant = consonant and not word.startswith(("unin", "unim"))
    return ("an " if silent or (word[0] in "aeiou" and not consonant) else "a ") + word


def fields(rng: Random, words: Words, nouns: tuple[str, ...]) -> dict[str, str]:
    """What stands for the letters in the wordings of one conversation."""
    noun, other = rng.sample(nouns, 2)
    first, second = rng.sample(words.adjectives, 2)
    one, two = rng.sample(NAMES, 2)
    return {
        "n": noun, "ns": noun + "s", "m": other, "an": article(noun), "am": article(other), "a": first, "b": second,
        "p": one, "q": two, "g": rng.choice(ACTIVITIES), "e": rng.choice(EVENTS), "f": rng.choice(MOODS),
        "l": rng.choice(PLACES),
    }  # fmt: skip


def draw_plain(rng: Random, words: Words, nouns: tuple[str, ...]) -> Example:
    """A conversation of one turn that asks for no fact."""
    intent = rng.choice(tuple(INTENTS))
    asks, places = INTENTS[intent]
    values = fields(rng, words, nouns)
    parts = (
        "" if intent == "thanks" else rng.choice(GREETINGS),
        rng.choice(asks),
        "" if intent in BARE else rng.choice(ENDINGS),
    )
    casual = rng.random() < 0.25
    prompt = agree(" ".join(part for part in parts if part).format(**values))
    kept = [place for at, place in enumerate(places) if at < 3 or rng.random() < 0.8]
    answer = agree(" ".join(rng.choice(place) for place in kept).format(**values))
    return Example(
        "chat",
        "/".join(("plain", intent, *parts, "casual" if casual else "")),
        (("user", prompt.lower().rstrip(".!?") if casual else prompt),),
        answer[0].upper() + answer[1:],
        {"facts": [], "wrong": [], "sentences": 2},
    )


def agree(text: str) -> str:
    """The text with "a" turned to "an" before a vowel; other words are left as they are."""
    words = text.split(" ")
    for at, (word, following) in enumerate(pairwise(words)):
        if word in ("a", "A") and following and article(following.lower()).startswith("an "):
            words[at] = word + "n"
    return " ".join(words)
