"""Detection of servers that answer repeated prompts alike, although they were asked to sample."""

from __future__ import annotations

_LEAST_TEMPERATURE = 0.8
_LEAST_LENGTH = 40
"""Least number of characters of an answer to compare; shorter answers, such as labels, are often equal."""
REPEATS = 8
"""Number of answers to repeated prompts that are compared."""
_PROMPTS = 256
"""Largest number of prompts whose first answer is kept."""


class RepeatedAnswers:
    """First answers to the prompts of one endpoint, with which later answers are compared."""

    def __init__(self) -> None:
        self._first: dict[int, str] = {}
        self._equal = 0
        self.is_decided = False
        """True once an answer differed, or `REPEATS` were equal; later answers are not compared."""

    def are_all_equal(self, prompt: str, text: str, temperature: float) -> bool:
        """Add an answer; return True, once, when `REPEATS` answers to repeated prompts have equalled the
        first answers.

        Args:
            prompt: Everything that the answer depends on, except chance.
            text: The answer.
            temperature: Temperature that was requested.
        """
        if self.is_decided or temperature < _LEAST_TEMPERATURE or len(text) < _LEAST_LENGTH:
            return False
        key = hash(prompt)
        if key not in self._first:
            if len(self._first) < _PROMPTS:
                self._first[key] = text
            return False
        is_equal = self._first[key] == text
        self._equal += is_equal
        self.is_decided = not is_equal or self._equal == REPEATS
        return is_equal and self.is_decided
