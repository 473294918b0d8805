"""Published models for the tests in ``real``, and questions to ask them."""

from __future__ import annotations

from collections.abc import Callable

Model = Callable[[str], str]
"""The path of a model by the name of its folder or file; skips where it is not there."""

QUESTIONS = {
    "code": "Write a Python function that returns the sum of the even numbers in a list.",
    "math": "A train drives 60 km in 40 minutes. How far does it drive in two hours?",
}
