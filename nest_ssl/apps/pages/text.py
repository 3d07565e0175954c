"""Texts of pages in English and Chinese; whatever is not `Markup` is escaped when it enters a text or a template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml
from markupsafe import Markup, escape


class Count(int):
    """A number of things: `{steps:step}` reads "1 step" or "2 steps", `{steps}` only the number."""

    def __format__(self, noun: str) -> str:
        return f"{int(self):,} {noun}{'' if self == 1 else 's'}" if noun else f"{int(self):,}"

    def __str__(self) -> str:
        return format(self)


@dataclass(frozen=True)
class Words:
    """One text in both languages; the page shows the chosen one."""

    english: Markup
    chinese: Markup

    def __html__(self) -> str:
        if self.english == self.chinese:
            return self.english
        return f'<span lang="en">{self.english}</span><span lang="zh">{self.chinese}</span>'

    __str__ = __html__

    @classmethod
    def same(cls, text: object) -> Words:
        """Return a text that both languages share, such as a name."""
        return cls(escape(text), escape(text))

    @property
    def heading(self) -> Words:
        """Return the text with a capital first letter, for a title."""
        return Words(self.english[:1].upper() + self.english[1:], self.chinese)

    @property
    def languages(self) -> tuple[tuple[str, Markup], tuple[str, Markup]]:
        return ("en", self.english), ("zh", self.chinese)


@dataclass(frozen=True)
class Phrases:
    """The texts of one kind of page by their keys, in English and Chinese."""

    texts: Mapping[str, tuple[str, str]]

    @classmethod
    def read(cls, path: Path) -> Phrases:
        """Read a YAML file that has an English text (`en`) and a Chinese one (`zh`) for each key."""
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C 30 times faster, where PyYAML was built with it
        texts = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
        return cls({key: (text["en"], text["zh"]) for key, text in texts.items()})

    def __call__(self, key: str, **values: object) -> Words:
        """Return the text of a key with values filled in: `Words` in the same language, all else escaped."""
        english, chinese = (
            Markup(text).format(**{name: _in_language(value, number) for name, value in values.items()})
            for number, text in enumerate(self.texts[key])
        )
        return Words(english, chinese)


def code(value: object) -> Markup:
    """Return a name in the font of code; long ones may break after a dot."""
    return Markup("<code>{}</code>").format(escape(value).replace(".", Markup(".<wbr>")))


def _in_language(value: object, language: int) -> object:
    return value.languages[language][1] if isinstance(value, Words) else value
