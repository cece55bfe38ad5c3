"""Names of statements: their text without what somebody sent as data, and without comments.

The lexical rules are those of PostgreSQL's manual, "Lexical Structure". A text may be cut anywhere,
and may not parse: if it is not certain that a literal has ended, the rest counts as part of it.

Anybody can send a text of any size, so the work is in proportion to its length, and blocks within
blocks are kept on a list of our own.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from functools import lru_cache

#: What replaces a literal.
LITERAL = "?"

_WORD = re.compile(r"[^\W\d][\w$]*")
_QUOTED = re.compile(r'"[^"]*(?:""[^"]*)*(?:"|$)')
_NUMBER = re.compile(r"\.?\d(?:[eE][+-](?=\d)|[\w.])*")
_PARAMETER = re.compile(r"\$\d+(?!\w)")
_DOLLARS = re.compile(r"\$(?:[^\W\d]\w*)?\$")
#: Each dollar that begins a quote or ends one: the last of one tag may be the first of another.
_ANY_DOLLARS = re.compile(r"\$(?=((?:[^\W\d]\w*)?\$))")
_BLANK = re.compile(r"\s+")
_LINE_COMMENT = re.compile(r"--[^\r\n]*")
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
#: Statements that can hold a password where no literal is: their texts are left out.
_SECRET = re.compile(
    r"\b(?:CREATE|ALTER)\s+(?:ROLE|USER|GROUP|SUBSCRIPTION|SERVER)\b", re.IGNORECASE
)
_CODE = re.compile(r"\s*DO\s+(?:LANGUAGE\s+plpgsql\s+)?$", re.IGNORECASE)
#: The most pieces that a statement has before its block of PL/pgSQL, blanks included.
_CODE_PIECES = 7
#: Longer texts are not kept in memory.
_KEPT = 10_000
#: Of a longer text only so many characters are read; the name ends with the mark.
MOST_READ = 1 << 17
CUT = " …"
#: Blanks and comments, but for comments within comments.
_APART = r"(?:\s|--[^\r\n]*+|/\*(?:(?!/\*|\*/).)*+\*/)*+"
#: What follows a block of PL/pgSQL. Behind any other, an unknown language has unknown literals.
_AFTER_CODE = re.compile(
    rf"{_APART}(?:LANGUAGE\s+plpgsql\b{_APART})?(?:;|(?:{CUT.strip()})?\Z)",
    re.IGNORECASE | re.DOTALL,
)


def normalised(text: str) -> str:
    """A statement with `?` for each literal and a blank for each comment.

    Parameters ($1), identifiers and layout stay. A block of PL/pgSQL (DO) is normalised within its
    quotes; bodies of functions are literals. In SET, whatever comes after the sign is a literal;
    so it is in ALTER SYSTEM, DATABASE, ROLE and FUNCTION … SET. Of a text that is longer than
    MOST_READ the beginning is taken, and CUT.
    """
    return _remembered(text) if len(text) <= _KEPT else _normalised(text)


def storable(text: str) -> str | None:
    """A text without its literals; None if it is of a kind that is left out."""
    plain = normalised(text)
    return None if _SECRET.search(plain) else plain


def _normalised(text: str) -> str:
    # with the mark the name of a long text may be longer than MOST_READ, and is its own name
    if len(text) > MOST_READ + len(CUT):
        return _Reader(text[:MOST_READ]).read() + CUT
    return _Reader(text).read()


_remembered = lru_cache(maxsize=4096)(_normalised)


class _Reader:
    """Goes over a text once; `at` is where it is, `out` what it has written.

    A block of PL/pgSQL within the text is read as a text of its own, which ends at `end`. What is
    behind it, if one looks one character too far, is a dollar or nothing, and neither goes on with
    any token; patterns must be given `end`.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.end = len(text)
        self.out: list[str] = []
        self.start = 0
        """where in `out` the block under way begins"""
        self.begin = 0
        """where in `out` the statement under way begins"""
        self.around: list[tuple[int, int, int, int]] = []
        """of the blocks around this one: where to go on, end, start and begin"""
        self.dollars: dict[str, list[int]] | None = None
        """the places of each tag, once one was met"""

    def read(self) -> str:
        while True:
            while self.at < self.end:
                self._token()
            self._hide_setting()
            self._drop_cut_tags()
            if not self.around:
                return "".join(self.out)
            self.at, self.end, self.start, self.begin = self.around.pop()
            self.out.append("$$")

    def _drop_cut_tags(self) -> None:
        """At the end: blanks, and a dollar that nothing ends, with letters behind it or without."""
        out = self.out
        while len(out) > self.start:
            length = len(out)
            if out[-1].isspace() or out[-1] == "$":
                out.pop()
            elif length - self.start > 1 and out[-2] == "$" and _WORD.fullmatch(out[-1]):
                del out[-2:]
            if len(out) == length:
                out[-1] = out[-1].rstrip()  # of a quoted name that nothing ends
                return

    def _token(self) -> None:
        text, at = self.text, self.at
        c = text[at]
        if c.isspace():
            found = _BLANK.match(text, at, self.end)
            end = found.end() if found else at + 1
            self._blank(end, text[at:end])
        elif text.startswith("--", at):
            comment = _LINE_COMMENT.match(text, at, self.end)
            self._blank(comment.end() if comment else at + 2)
        elif text.startswith("/*", at):
            self._blank(self._comment_end())
        elif c == "'":
            self._literal(self._quote_end(at))
        elif c == '"':
            self._take(_QUOTED)
        elif c == "$":
            self._dollar()
        elif c.isdigit() or (c == "." and text[at + 1 : at + 2].isdigit()):
            number = _NUMBER.match(text, at, self.end)
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
        found = pattern.match(self.text, self.at, self.end)
        end = found.end() if found else self.at + 1
        self._put(self.text[self.at : end], end)

    def _blank(self, end: int, blank: str = " ") -> None:
        """Of blanks around a comment one is left, with the end of the line; at the begin none."""
        if len(self.out) > self.start:
            if not self.out[-1][:1].isspace():  # all of it is blank: it may be long
                self.out.append(blank)
            elif "\n" in blank:
                self.out[-1] = blank
        self.at = end

    def _literal(self, end: int) -> None:
        self._put(LITERAL, end)

    def _word(self) -> None:
        text, at = self.text, self.at
        found = _WORD.match(text, at, self.end)
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
        found = _QUOTE_PART.search(text, quote + 1, self.end)
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
                more = _CONTINUED.match(text, at + 1, self.end)
                if more is None:
                    return at + 1
                at = more.end()
            found = _QUOTE_PART.search(text, at, self.end)
        return self.end

    def _comment_end(self) -> int:
        level = 0
        for part in _COMMENT_PART.finditer(self.text, self.at, self.end):
            level += 1 if part.group() == "/*" else -1
            if level == 0:
                return part.end()
        return self.end

    def _dollar(self) -> None:
        text, at = self.text, self.at
        parameter = _PARAMETER.match(text, at, self.end)
        quote = _DOLLARS.match(text, at, self.end)
        if parameter:
            self._put(parameter.group(), parameter.end())
        elif quote:
            end = self._next(quote.group(), quote.end())
            after = self.end if end < 0 else end + len(quote.group())
            if self._is_code() and _AFTER_CODE.match(text, after, self.end):
                self._put("$$", quote.end())
                self.around.append((after, self.end, self.start, self.begin))
                self.end = self.end if end < 0 else end
                self.start = self.begin = len(self.out)
            else:
                self._literal(after)
        else:
            self._put("$", at + 1)

    def _next(self, tag: str, at: int) -> int:
        """Where a tag is next, from a place on; -1: not before the end.

        It may be far away, and many tags may be within one block, so they are looked for together.
        """
        if self.dollars is None:
            self.dollars = defaultdict(list)
            for found in _ANY_DOLLARS.finditer(self.text):
                self.dollars["$" + found[1]].append(found.start())
        places = self.dollars[tag]
        i = bisect_left(places, at)
        return places[i] if i < len(places) and places[i] + len(tag) <= self.end else -1

    def _first_word(self) -> str:
        """That of the statement under way, in upper case, cut."""
        for piece in self.out[self.begin : self.begin + 2]:
            if not piece[:1].isspace():
                return piece[:10].upper()
        return ""

    def _is_code(self) -> bool:
        """Whether what has been read of the statement goes before a block of PL/pgSQL."""
        if len(self.out) - self.begin > _CODE_PIECES or self._first_word() != "DO":
            return False
        return _CODE.match("".join(self.out[self.begin :])) is not None

    def _hide_setting(self) -> None:
        """The value of a setting may be without quotes."""
        if self._first_word() not in ("SET", "ALTER"):
            return  # a block around this one would be put together again and again
        statement = "".join(self.out[self.begin :])
        found = _SETTING.match(statement)
        if found:
            self.out[self.begin :] = [statement[: found.end()] + LITERAL]
