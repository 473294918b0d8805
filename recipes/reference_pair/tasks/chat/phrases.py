"""Wordings of the chat task that belong to no scene: questions, small talk, and the frame of an answer."""

from __future__ import annotations

DIRECT = (
    "What is {label} of {x}?",
    "Can you tell me {label} of {x}?",
    "I forgot {label} of {x}. What was it?",
    "Please look up {label} of {x}.",
)
REVERSE = (
    "Which {item} {says}?",
    "Tell me which {item} {says}, please.",
    "I forgot which {item} {says}. Do you know?",
    "I am looking for the {item} {relative} {says}. Which one is it?",
)
PAIR = (
    "What is {label} of {x}, and what is it for {y}?",
    "Give me {label} of {x} and also of {y}.",
    "I need {label} of both {x} and {y}.",
    "First {x}, then {y}: what was {label} of each?",
    "Can you find {label} of {x} and that of {y}?",
)
TWO = (
    "What are {label} and {other} of {x}?",
    "Give me {label} and {other} of {x}.",
    "For {x} I need {label} and {other}.",
    "Could you find {label} as well as {other} of {x}?",
)
ALL = (
    "What did I say about {x}?",
    "Tell me everything that you know about {x}.",
    "Sum up what I noted on {x}.",
    "What do we have on {x}?",
    "Could you repeat all the details of {x}?",
)
SHARED = (
    "Which {item}s {plural}?",
    "Name all the {item}s that {plural}.",
    "How many {item}s {plural}, and which are they?",
    "Can you count the {item}s that {plural} and name them?",
)
LISTED = (
    "{given}: {label}?", "List {label} of each: {given}.", "Go through these: {given}. I need {label}.",
    "One by one, {label}: {given}.", "{given}. What is {label} of each?",
)  # fmt: skip
PREFACES = (
    "", "", "", "Now a question.", "Back to the {title}.", "One more thing.", "Help me out here.", "Let me test you.",
    "I lost track of the {title}.", "So, about the {title}.",
)  # fmt: skip
MORE = (
    "There is more.", "The list goes on.", "Here come the others.", "I found some further entries.", "Next ones.",
    "And these, too.",
)  # fmt: skip
NOTED = (
    "Noted. Is there anything else?", "Thanks, I will keep that in mind.", "All right, I have written it down.",
    "Understood. Please go on.", "Good, that is clear so far.", "I see. Tell me more when you like.",
    "Very well, that is stored.", "Got it. What comes next?", "Thank you, I am following.", "That is helpful to know.",
    "I have added it to the {title}.", "So far the {title} is easy to follow.", "Fine, I will remember each {item}.",
    "Okay. Just ask when you need a detail.", "Sure, I can keep track of every {item}.",
)  # fmt: skip
TALK = (
    ("By the way, my neighbour just bought a {a} {n}.", "How nice. I hope it serves them well."),
    ("I slept badly because of the {a} {n} outside.", "Sorry to hear that. Perhaps tonight will be calmer."),
    ("Do you like {a} {n}s?", "I have never met one, but I enjoy hearing about them."),
    ("My sister wants to write a book about a {a} {n}.", "What a lovely idea. Has she found a title yet?"),
    ("It has been raining since noon, and the {n} is wet.", "Then it is a good moment to stay inside."),
    ("I had to explain the word {n} to a child today.", "Children ask the best questions. Did it work out?"),
    ("The {n} in our street is broken again.", "That must be annoying. Someone should repair it."),
    ("Wait, the phone is ringing. It was about a {n}.", "No problem, take your time."),
    ("I wonder why every {n} looks so {a} these days.", "Fashion comes and goes, I suppose."),
    ("Can people really {v} without a {n}?", "Some can, but most would rather not try."),
    ("My coffee went cold while I looked at the {n}.", "A fresh cup might be in order."),
    ("Yesterday we talked for hours about {a} {n}s.", "It sounds like an entertaining evening."),
    ("I should learn to {v} one of these days.", "It is never too late to start."),
    ("There was a {n} on the news, and it was {a}.", "I missed that, but it sounds remarkable."),
    ("My old {n} still works after ten years.", "They knew how to build things back then."),
    ("Let us take a short break. I must {v} first.", "Of course. I will be here afterwards."),
    ("Did you know that a {n} can be {a}?", "I did not, but it is worth remembering."),
    ("The children painted a {a} {n} this afternoon.", "I am sure that they had fun."),
    ("My boss calls every {n} a {m}.", "That could lead to some confusion."),
    ("I am still hungry, although I had lunch.", "A small snack would do no harm."),
)  # fmt: skip
ASIDES = (
    "Before I forget, here is something that I wrote.", "Let me read you a piece of my essay.",
    "Meanwhile I would like to share a thought.", "Now for something quite different.", "Here is a text that I found.",
)  # fmt: skip
REPLIES = (
    "That reads well. I like the calm tone.", "Interesting, thank you for sharing it.",
    "A curious piece. It made me think.",
    "I enjoyed that. The middle part is the best.", "Well put, although some may disagree.",
    "Thank you. There is a lot of truth in it.",
)  # fmt: skip
PROSE = (
    "Every {n} has a story, even if nobody cares to tell it.",
    "Most people think of a {n} when they hear the word {m}.",
    "It takes patience to understand a {a} {n}.",
    "In the past, a {n} was seen as a sign of luck.",
    "Nobody could say where the {a} {n} had come from.",
    "My grandfather used to compare life with a {n}.",
    "Some prefer to {v}, and others would rather wait.",
    "There is a difference between a {n} and a {m}, but it is small.",
    "When the weather changes, {n}s are the first to suffer.",
    "A {a} {n} is worth more than a {b} one.",
    "Years ago I read an article about {n}s.",
    "The author claimed that a {m} could replace them.",
    "We rarely ask what a {n} is good for.",
    "Those who {v} every morning seem to be happier.",
    "It would be wrong to call this {a}.",
    "The {n} was {a}, the {m} was not, and that was all.",
    "Experts disagree on whether {n}s ought to be {a}.",
    "Along the river one could see {n}s of every kind.",
    "Without a {n}, even the best {m} is of little use.",
    "One evening somebody left a {a} {n} at the door.",
    "People in small towns know how to {v}.",
    "A letter arrived, and it spoke of a {n} and a {m}.",
    "Since then, the word {n} has had a {a} sound to me.",
    "Not every {n} can be repaired, as we learned.",
    "The museum keeper smiled and said that {n}s never grow old.",
    "What looks {a} at first may turn out to be {b}.",
    "If you want to {v}, you should begin in spring.",
    "They built a wall around the {n}, which did not help.",
    "The smell of a {a} {n} is hard to forget.",
    "To this day, the {n} remains a mystery.",
    "As a rule, {n}s come before {m}s.",
    "Few things are as {a} as a {n} in winter.",
    "The old road leads past a {n} and down to the sea.",
    "At school we were told to {v} and to keep quiet.",
    "I have met a man who collected {n}s all his life.",
    "There was silence, and then the {n} began to move.",
    "Such {n}s are rare, but {m}s can be found anywhere.",
    "A good {n} does not have to be {a}.",
    "In some countries it is polite to {v} after a meal.",
    "Everything else about the {n} is a matter of taste.",
)
OPENERS = (
    "", "", "", "Sure: ", "Of course: ", "According to the {title}, ", "As far as I can see, ",
    "Going by the {title}, ",
    "You told me that ", "You wrote that ", "From what you told me, ", "I found it: ", "In the {title} I read that ",
    "Let me see: ", "If I read the {title} correctly, ", "As you noted, ",
)  # fmt: skip
# For a first sentence that speaks of the question, which "You wrote that" cannot introduce.
LEADS = ("", "Sure: ", "Of course: ", "I found it: ", "Let me see: ", "As far as I can see, ", "If I am right, ")
FOLLOW_ONE = (
    "Besides, {again} {b}.", "In addition, {again} {b}.", "I can add that {again} {b}.",
    "Apart from that, {again} {b}.",
    "The same entry says that {again} {b}.", "You also mentioned that {again} {b}.", "What is more, {again} {b}.",
)  # fmt: skip
FOLLOW_TWO = (
    "Besides, {again} {b} and {c}.", "In addition, {again} {b} and {c}.", "Apart from that, {again} {b} and {c}.",
    "You also mentioned that {again} {b} and {c}.", "The same entry says that {again} {b} and {c}.",
    "As for the rest, {again} {b} and {c}.", "It may help to know that {again} {b} and {c}.",
)  # fmt: skip
BOTH = (
    "The former {b}, and the latter {c}.", "Of the two, the first {b} and the second {c}.",
    "The first of them {b}, the other one {c}.", "Besides, the former {b} while the latter {c}.",
    "I also see that the first one {b}, whereas the second {c}.",
)  # fmt: skip
AFTER = (
    "You listed {again} right after {y}.", "{again} comes just after {y}.", "In the {title}, {again} follows {y}.",
    "The entry before that is {y}.", "You named {again} directly after {y}.",
)  # fmt: skip
BEFORE = (
    "Just before that you listed {y}, {b}.", "The entry above is {y}, {b}.", "The one before was {y}, {b}.",
    "In the {title}, {again} follows {y}, {b}.", "The {item} named before that was {y}, {b}.",
)  # fmt: skip
FIRST = (
    "{again} comes first in the {title}.", "That was the first {item} you named.",
    "{again} opens your list of {item}s.",
    "No other {item} was named earlier.",
)  # fmt: skip
REMARKS = (
    "I hope that this helps.", "That is all I have on this.", "It is good that you wrote it down.",
    "That should be everything you asked for.", "I am glad to help with this.",
    "Every {item} has its place in the {title}.",
    "Nothing more was said about {again}.", "The rest of the {title} is ready, too.",
    "The {title} is quite clear here.",
    "So much for this {item}.", "I have not changed a word of it.", "You can rely on the {title} here.",
    "Those are the details you gave.", "This is what I kept in mind.", "I checked it against the {title}.",
)  # fmt: skip
OFFERS = (
    "Shall I look up another {item} for you?", "Tell me if you need anything else.",
    "Just ask if something is unclear.",
    "Would you like to hear about another {item}?", "Is that what you wanted to know?",
    "Let me know if it has changed.",
    "I can repeat the other {item}s as well.", "Do you want to change anything?", "Feel free to ask about the rest.",
    "I can check the other entries, too.", "Please correct me if I am mistaken.", "Does that answer your question?",
    "Should I note anything else?", "You can ask me again at any time.", "Shall we go through the other {item}s?",
    "Is there anything to add?", "Say the word if you need more details.", "Let me know what to look for next.",
    "You may want to check it once more.", "What else would you like to know?", "Which {item} should be next?",
    "I would be happy to go on with another {item}.", "If you like, we can continue with the rest.",
    "Perhaps you want to compare it with another {item}?",
)  # fmt: skip
COUNTS = {2: "two", 3: "three", 4: "four"}
