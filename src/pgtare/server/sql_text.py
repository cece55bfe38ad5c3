"""Names of statements: their text without what somebody sent as data, and without comments.

The lexical rules are those of PostgreSQL's manual, "Lexical Structure". A text may be cut anywhere,
and may not parse: if it is not certain that a literal has ended, the rest counts as part of it.
"""

from __future__ import annotations

import re
from functools import lru_cache

#: What replaces a literal.
LITERAL = "?"

_WORD = re.compile(r"[^\W\d][\w$]*")
_QUOTED = re.compile(r'"(?:[^"]|"")*(?:"|$)')
_NUMBER = re.compile(r"\.?\d(?:[eE][+-](?=\d)|[\w.])*")
_PARAMETER = re.compile(r"\$\d+(?!\w)")
_DOLLARS = re.compile(r"\$(?:[^\W\d]\w*)?\$")
_BLANK = re.compile(r"\s+")
_COMMENT_PART = re.compile(r"/\*|\*/")
#: All that can mean something within a literal.
_QUOTE_PART = re.compile(r"['\\]")
#: A literal goes on after a line's end, in the rules of its beginning.
_CONTINUED = re.compile(r"[^\S\r\n]*(?:--[^\r\n]*)?[\r\n](?:\s|--[^\r\n]*(?=[\r\n]))*'")
#: Letters before a quote that begin a literal.
_PREFIXES = ("e", "b", "x", "n")
_SETTING = re.compile(
    r"\s*(?:ALTER\s+(?:SYSTEM\s+|(?:DATABASE|ROLE|USER|FUNCTION|PROCEDURE|ROUTINE)\s.*?\s))?"
    r"SET\s+(?:(?:SESSION|LOCAL)\s+)?[\w.$\"]+\s*(?:=|\bTO\b)\s*(?=[^\s?$])",
    re.IGNORECASE | re.DOTALL,
)
_CODE = re.compile(r"\s*DO\s+(?:LANGUAGE\s+plpgsql\s+)?$", re.IGNORECASE)
#: Longer texts are not kept in memory.
_KEPT = 10_000


def normalised(text: str) -> str:
    """A statement with `?` for each literal and a blank for each comment.

    Parameters ($1), identifiers and layout stay. A block of PL/pgSQL (DO) is normalised within its
    quotes; bodies of functions are literals. In SET, whatever comes after the sign is a literal;
    so it is in ALTER SYSTEM, DATABASE, ROLE and FUNCTION … SET.
    """
    return _remembered(text) if len(text) <= _KEPT else _normalised(text)


def _normalised(text: str) -> str:
    return _Reader(text).read().strip()


_remembered = lru_cache(maxsize=4096)(_normalised)


class _Reader:
    """Goes over a text once; `at` is where it is, `out` what it has written."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.out: list[str] = []
        self.begin = 0
        """where in `out` the statement under way begins"""

    def read(self) -> str:
        while self.at < len(self.text):
            self._token()
        self._hide_setting()
        self._drop_cut_tags()
        return "".join(self.out)

    def _drop_cut_tags(self) -> None:
        """At the end: a dollar that nothing ends, with letters behind it or without."""
        out = self.out
        while out:
            length = len(out)
            if out[-1].isspace() or out[-1] == "$":
                out.pop()
            elif out[-2:-1] == ["$"] and _WORD.fullmatch(out[-1]):
                del out[-2:]
            if len(out) == length:
                return

    def _token(self) -> None:
        text, at = self.text, self.at
        c = text[at]
        if c.isspace():
            found = _BLANK.match(text, at)
            end = found.end() if found else at + 1
            self._blank(end, text[at:end])
        elif text.startswith("--", at):
            ends = [n for n in (text.find("\n", at), text.find("\r", at)) if n >= 0]
            self._blank(min(ends, default=len(text)))
        elif text.startswith("/*", at):
            self._blank(self._comment_end())
        elif c == "'":
            self._literal(self._quote_end(at))
        elif c == '"':
            self._take(_QUOTED)
        elif c == "$":
            self._dollar()
        elif c.isdigit() or (c == "." and text[at + 1 : at + 2].isdigit()):
            number = _NUMBER.match(text, at)
            self._literal(number.end() if number else at + 1)
        elif c == "_" or c.isalpha():
            self._word()
        else:
            if c == ";":
                self._hide_setting()
            self._put(c, at + 1)
            if c == ";":
                self.begin = len(self.out)

    def _put(self, what: str, end: int) -> None:
        self.out.append(what)
        self.at = end

    def _take(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.text, self.at)
        end = found.end() if found else self.at + 1
        self._put(self.text[self.at : end], end)

    def _blank(self, end: int, blank: str = " ") -> None:
        """Of blanks around a comment one is left, with the end of the line."""
        if not self.out or not self.out[-1].isspace():
            self.out.append(blank)
        elif "\n" in blank:
            self.out[-1] = blank
        self.at = end

    def _literal(self, end: int) -> None:
        self._put(LITERAL, end)

    def _word(self) -> None:
        text, at = self.text, self.at
        found = _WORD.match(text, at)
        end = found.end() if found else at + 1
        word = text[at:end].lower()
        if text[end : end + 1] == "'" and word in _PREFIXES:
            self._literal(self._quote_end(end, word))
        elif word == "u" and text.startswith("&'", end):
            self._literal(self._quote_end(end + 1, "u&"))
        elif word == "u" and text.startswith('&"', end):
            self._put(text[at : end + 1], end + 1)
        else:
            self._put(text[at:end], end)

    def _quote_end(self, quote: int, prefix: str = "") -> int:
        """Where the literal that begins with this quote has ended, those that continue it too.

        In E'' a backslash escapes, in U&'' no quote. In others it escapes if
        standard_conforming_strings is off: before a quote nothing tells where the literal ends.
        """
        text = self.text
        found = _QUOTE_PART.search(text, quote + 1)
        while found:
            at = found.start()
            after = text[at + 1 : at + 2]
            if found.group() == "\\" and prefix == "e":
                at += 2
            elif found.group() == "\\" and after == "'" and prefix != "u&":
                break
            elif found.group() == "\\":
                at += 1
            elif after == "'":
                at += 2
            else:
                more = _CONTINUED.match(text, at + 1)
                if more is None:
                    return at + 1
                at = more.end()
            found = _QUOTE_PART.search(text, at)
        return len(text)

    def _comment_end(self) -> int:
        level = 0
        for part in _COMMENT_PART.finditer(self.text, self.at):
            level += 1 if part.group() == "/*" else -1
            if level == 0:
                return part.end()
        return len(self.text)

    def _dollar(self) -> None:
        text, at = self.text, self.at
        parameter = _PARAMETER.match(text, at)
        quote = _DOLLARS.match(text, at)
        if parameter:
            self._put(parameter.group(), parameter.end())
        elif quote:
            end = text.find(quote.group(), quote.end())
            body = text[quote.end() : end if end >= 0 else len(text)]
            after = end + len(quote.group()) if end >= 0 else len(text)
            if _CODE.match("".join(self.out[self.begin :])):
                self._put(f"$${_normalised(body)}$$", after)
            else:
                self._literal(after)
        else:
            self._put("$", at + 1)

    def _hide_setting(self) -> None:
        """The value of a setting may be without quotes."""
        statement = "".join(self.out[self.begin :])
        found = _SETTING.match(statement)
        if found:
            self.out[self.begin :] = [statement[: found.end()] + LITERAL]
