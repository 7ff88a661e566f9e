"""The words of the embedded data: household questions, answers that help, and answers that do not.

Few words on purpose: the tokenizer has room for some 250 whole words. Helpful and unhelpful answers are about
equally long, so that a preference cannot be learned from length alone.
"""

from __future__ import annotations

# (what to do, three tips)
TASKS = (
    ("water a fern", ("pour a little on the soil", "keep the pot warm", "wait a day each time")),
    ("bake bread", ("let it rest for an hour", "heat the oven first", "use warm water")),
    ("clean a window", ("use warm water", "start at the top", "dry it with paper")),
    ("learn a song", ("take one line at a time", "play it slowly", "start with the end")),
    ("fix a bike", ("check the chain first", "fill the tires with air", "keep the oil clean")),
    ("cook rice", ("wash it two times", "keep the heat low", "let it rest at the end")),
    ("train a dog", ("use short words", "keep a calm voice", "give it food each time")),
    ("plant a tree", ("dig a wide hole", "keep the soil warm", "pour water on it each day")),
    ("paint a wall", ("start at the top", "wash the wall first", "keep the room warm")),
    ("pack a bag", ("put heavy things first", "use little paper", "leave air at the top")),
    ("make soup", ("keep the heat low", "wash the food first", "put salt in at the end")),
    ("feed a cat", ("give it food two times a day", "keep the water clean", "use a wide bowl")),
)

CONTEXTS = (
    "in winter", "in summer", "at night", "at home", "alone", "with kids", "by hand", "for a friend",
    "on a boat", "in the rain", "before work", "after school", "in a small room", "with old tools",
    "for the first time", "with little time",
)  # fmt: skip

QUESTIONS = (
    "How do I {task} {context}?",
    "How can I {task} {context}?",
    "How do you {task} {context}?",
    "What do I need to {task} {context}?",
    "What is the best way to {task} {context}?",
    "Is it hard to {task} {context}?",
    "Is there a way to {task} {context}?",
    "Can you help me to {task} {context}?",
    "Can you tell me how to {task} {context}?",
    "I need to {task} {context}. How?",
    "I want to {task} {context}. What first?",
    "My friend wants to {task} {context}. How?",
)

KIND_OPENINGS = ("Sure,", "Of course,", "Yes,", "Good question,", "Gladly,")
ADVICE = ("you should {tip}.", "it is best to {tip}.", "you need to {tip}.", "try to {tip}.", "just {tip}.")
KIND_ENDINGS = ("Good luck!", "Have fun!", "You can do it.", "Ask me again.", "")

RUDE_OPENINGS = ("No,", "Who cares,", "Not again,", "Go away,", "What a question,")
REFUSALS = (
    "you can not {task} at all.",
    "nobody wants to {task} here.",
    "I hate to {task} so much.",
    "do not {task} at my place.",
    "I never {task} for you.",
)
RUDE_ENDINGS = ("Leave me alone.", "Bad luck!", "Stop it.", "Ask your mother.", "")

EVASIONS = (
    "some people {task} and some do not.",
    "you just {task} as you like.",
    "I can {task} too, you know.",
    "it is fun to {task} some day.",
    "to {task} is just to {task}.",
)
