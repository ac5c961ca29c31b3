"""A parser whose options and arguments stand in any order, and which says what it does not take."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import takewhile, zip_longest
from typing import Any

__all__ = ["SETTING", "Parser"]

#: Metavar of options that take one setting or more.
SETTING = "NAME=VALUE"


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` of a command or of its subcommand.

    - Options and arguments may stand in any order.
    - After an option whose metavar is `SETTING` all words that are settings belong to it.
    - An option with an optional value does not take a word that an argument has among its choices.
    - What is not known is an error of the subcommand it was given to, which names the nearest
      option.
    """

    _is_within = False

    def parse_known_args(  # type: ignore[override]  # typeshed has overloads for namespaces
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse; unlike the base class, leave nothing over."""
        if self._is_within or args is None:
            return super().parse_known_args(args, namespace)
        if self._subparsers is not None:  # for which the base class knows one order only
            self._refuse_unknown(list(takewhile(_is_option, args)))
            namespace, left = super().parse_known_args(args, namespace)
        else:
            words = self._divided(args)
            self._is_within = True  # the other order comes back to this method
            try:
                namespace, left = super().parse_known_intermixed_args(words, namespace)
            finally:
                self._is_within = False
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return namespace, left

    def _divided(self, words: Sequence[str]) -> list[str]:
        """Return the words with no doubt about which of them are values of an option."""
        words, after = list(words), []
        if "--" in words:
            words, after = words[: words.index("--")], words[words.index("--") :]
        self._refuse_unknown(words)
        choices = [name for one in self._get_positional_actions() for name in one.choices or ()]
        found: list[str] = []
        option = ""  # the last one, if it takes settings
        for word, following in zip_longest(words, words[1:]):
            if _is_option(word):
                name = word.partition("=")[0]
                action = self._option(name)
                option = name if action is not None and action.metavar == SETTING else ""
                if action is not None and action.nargs == "?" and following in choices:
                    word = word if "=" in word else f"{word}={action.const}"
            elif option and _is_setting(word) and found[-1] != option:
                found.append(option)
            found.append(word)
        return found + after

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        """End the program if one of the words is an option that there is not."""
        for word in words:
            name = word.partition("=")[0]
            if not (word.startswith("--") and not self._named(name)):
                continue
            near = get_close_matches(name, self._option_string_actions, n=1, cutoff=0.75)
            mend = f"; did you mean {near[0]}?" if near else ""
            if self._subparsers is not None and not near:
                mend = "; options of a subcommand stand after its name"
            self.error(f"unrecognized arguments: {word}{mend}")

    def _named(self, name: str) -> list[argparse.Action]:
        """Return the options that a word names, in full or by its beginning."""
        options = self._option_string_actions
        if name in options or not name.startswith("--"):
            return [options[name]] if name in options else []
        return [action for full, action in options.items() if full.startswith(name)]

    def _option(self, name: str) -> argparse.Action | None:
        found = self._named(name)
        return found[0] if len(found) == 1 else None


def _is_option(word: str) -> bool:
    return word.startswith("-")


def _is_setting(word: str) -> bool:
    return word.startswith("{") or "=" in word
