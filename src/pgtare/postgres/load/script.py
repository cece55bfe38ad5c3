"""Compile a pgbench script into the commands that our driver runs."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pgtare.errors import UsageError

#: Of an expression: each level is a call of ours.
MAX_DEPTH = 60


@dataclass(frozen=True)
class Operation:
    """One step of an expression in postfix order. operand: of a constant, or a variable's name."""

    kind: str
    operand: int | str | None = None


@dataclass(frozen=True)
class Assignment:
    """A \\set."""

    variable: str
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class Variable:
    """The place of a variable in a statement."""

    name: str


@dataclass(frozen=True)
class Statement:
    """SQL, with variables between its pieces of text."""

    parts: tuple[str | Variable, ...]


@dataclass(frozen=True)
class Program:
    """A compiled script."""

    name: str
    commands: tuple[Assignment | Statement, ...]


def compile_script(text: str, name: str, known: Mapping[str, int]) -> Program:
    r"""The commands of a pgbench script: SQL, and \set with whole numbers and random().

    known: variables that have a value beforehand, such as scale. Variables represent themselves
    inside quotes and comments. Raises UsageError, with the line, for what our driver cannot run.
    """
    text = _checked(text, name)
    commands: list[Assignment | Statement] = []
    defined = set(known)
    for line, chunk in _chunks(text, name):
        try:
            if chunk.startswith("\\"):
                assignment = _assignment(chunk, defined)
                defined.add(assignment.variable)
                commands.append(assignment)
            else:
                commands.append(_statement(chunk, defined))
        except _Refused as ex:
            raise UsageError(f"{name}, line {line}: {ex}") from None
    while commands and isinstance(commands[-1], Assignment):
        commands.pop()
    if not commands:
        raise UsageError(f"{name}: there is no SQL statement in it")
    return Program(name, tuple(commands))


def _checked(text: str, name: str) -> str:
    """The text without a byte order mark. Raises UsageError for what no server reads as it is."""
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UsageError(
            f"{name}, line {line}: the server would cut the statement at the NUL byte that is in "
            "it: remove it"
        )
    try:
        text.encode()
    except UnicodeEncodeError as ex:
        raise UsageError(f"{name} is not UTF-8: convert it") from ex
    return text.removeprefix("\ufeff")


def outline(text: str) -> str:
    """A statement as words and signs with a blank between them.

    Without comments; small letters; the quotes of names are gone, and literals are empty.
    """
    found = []
    for kind, piece in _tokens(text):
        if kind == "quoted":
            name = piece[1:-1].replace('""', '"')
            found.append(name.lower() if piece[0] == '"' else "''")
        elif kind != "space":
            found.append(piece.lower())
    return " ".join(found)


class _Refused(Exception):
    """Why a piece of a script cannot be run; its line is known further up."""


# SQL's lexical elements in which neither a semicolon nor a colon means anything of its own. One
# that nothing ends is the rest of the script: the server says what is wrong, and none is tried in
# vain at each of its beginnings.
_SQL = re.compile(
    r"""(?P<space>\s+|--[^\n\r]*)
    |(?P<comment>/\*)
    |(?P<quoted>[eE]'(?:[^'\\]|''|\\.?)*(?:'|\Z)|'(?:[^']|'')*(?:'|\Z)|"(?:[^"]|"")*(?:"|\Z)
      |(?P<tag>\$(?:[A-Za-z_]\w*)?\$).*?(?:(?P=tag)|\Z))
    |(?P<cast>::|:=)
    |:(?P<variable>[A-Za-z_]\w*)
    |(?P<joint>\\;)
    |(?P<end>;)
    |(?P<word>[^\W\d][\w$]*|\w+|.)""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_META_COMMAND = re.compile(r"(?:\\\n|[^\n])*")


def _token(text: str, at: int) -> tuple[str, str]:
    """The kind of the lexical element at this place, and its text."""
    found = _SQL.match(text, at)
    assert found is not None
    if found.lastgroup != "comment":
        return str(found.lastgroup), found[0]
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, at):  # comments may hold comments
        depth += 1 if edge[0] == "/*" else -1
        if not depth:
            return "space", text[at : edge.end()]
    return "space", text[at:]


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        kind, piece = _token(text, at)
        yield kind, piece
        at += len(piece)


def _chunks(text: str, name: str) -> Iterator[tuple[int, str]]:
    """Meta-commands and statements, each with the number of its first line."""
    at, line = 0, 1
    at_line_begin = True  # only blanks are before it in its line
    begun: tuple[int, int] | None = None  # where the statement's first word is, and in which line
    while at < len(text):
        if begun is None and text[at] == "\\" and at_line_begin:
            command = _META_COMMAND.match(text, at)
            assert command is not None
            piece = command[0]
            yield line, piece.replace("\\\n", " ")
        else:
            kind, piece = _token(text, at)
            if kind == "end":
                if begun is not None:
                    yield begun[1], text[begun[0] : at]
                begun = None
            elif kind != "space" and begun is None:
                begun = at, line
        at += len(piece)
        line += piece.count("\n")
        _, newline, behind = piece.rpartition("\n")
        at_line_begin = not behind.strip() and (bool(newline) or at_line_begin)
    if begun is not None:
        yield begun[1], text[begun[0] :].rstrip()


def _statement(chunk: str, defined: set[str]) -> Statement:
    parts: list[str | Variable] = []
    plain = ""
    for kind, piece in _tokens(chunk):
        if kind != "variable":
            plain += ";" if kind == "joint" else piece
            continue
        variable = piece[1:]
        if variable not in defined:
            raise _Refused(f":{variable} has no value (\\set gives it one)")
        parts += [plain, Variable(variable)]
        plain = ""
    parts.append(plain)
    if re.match(r"copy\b", chunk, re.IGNORECASE):
        raise _Refused("pgtare's driver cannot run COPY")
    return Statement(tuple(part for part in parts if part != ""))


_SET = re.compile(r"\\set\s+(?P<variable>\w+)\s+(?P<expression>.+)", re.DOTALL)
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?![\w.]))|:(?P<variable>\w+)|(?P<name>[A-Za-z_]\w*)|(?P<sign>[-+*/%(),]))"
)
_BINARY = {"+": (1, "add"), "-": (1, "subtract"), "*": (2, "multiply"), "/": (2, "divide")}
_BINARY["%"] = (2, "modulo")
#: Of the largest 64-bit number.
_MAX_DIGITS = 19


def _assignment(chunk: str, defined: set[str]) -> Assignment:
    found = _SET.match(chunk)
    if found is None:
        command = chunk.split()[0]
        if command == "\\set":
            raise _Refused("\\set takes a variable and an expression")
        raise _Refused(f"pgtare's driver cannot run {command}, only \\set of pgbench's commands")
    return Assignment(found["variable"], _Expression(found["expression"], defined).operations)


class _Expression:
    """Recursive descent over a \\set's expression; leaves its operations in postfix order."""

    def __init__(self, text: str, defined: set[str]) -> None:
        self._defined = defined
        self._tokens = deque(self._split(text))
        self._operations: list[Operation] = []
        self._depth = 0
        self._sum(0)
        if self._tokens:
            raise _Refused(f"{self._tokens[0][1]!r} is not expected in the expression")
        self.operations = tuple(self._operations)

    @staticmethod
    def _split(text: str) -> list[tuple[str, str]]:
        tokens = []
        text, at = text.rstrip(), 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None or found.lastgroup is None:
                raise _Refused(
                    f"cannot read {text[at:].strip()!r}: an expression has whole numbers,"
                    " variables, + - * / %, and random(lowest, highest)"
                )
            tokens.append((found.lastgroup, found[found.lastgroup]))
            at = found.end()
        return tokens

    def _sum(self, precedence: int) -> None:
        """An operand, and the operators after it that bind closer than `precedence`."""
        self._operand()
        while self._tokens and self._tokens[0][1] in _BINARY:
            binds, kind = _BINARY[self._tokens[0][1]]
            if binds <= precedence:
                return
            self._tokens.popleft()
            self._sum(binds)
            self._operations.append(Operation(kind))

    def _operand(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _Refused("the expression is too deep")
        kind, value = self._tokens.popleft() if self._tokens else ("end", "the end")
        if kind == "number":
            digits = value.lstrip("0") or "0"
            if len(digits) > _MAX_DIGITS or int(digits) >= 2**63:
                shown = digits if len(digits) <= 2 * _MAX_DIGITS else f"{digits[:_MAX_DIGITS]}…"
                raise _Refused(f"{shown} is larger than a 64-bit number")
            self._operations.append(Operation("constant", int(digits)))
        elif kind == "variable":
            if value not in self._defined:
                raise _Refused(f":{value} has no value (\\set gives it one)")
            self._operations.append(Operation("variable", value))
        elif kind == "name":
            self._random(value)
        elif value == "-":
            self._operand()
            self._operations.append(Operation("negate"))
        elif value == "(":
            self._sum(0)
            self._expect(")")
        else:
            raise _Refused(f"a value is expected, not {value}")
        self._depth -= 1

    def _random(self, name: str) -> None:
        if name != "random":
            raise _Refused(f"pgtare's driver has no {name}(), only random() of pgbench's functions")
        for sign in ("(", ","):
            self._expect(sign)
            self._sum(0)
        self._expect(")")
        self._operations.append(Operation("random"))

    def _expect(self, sign: str) -> None:
        if not self._tokens or self._tokens.popleft()[1] != sign:
            raise _Refused(f"{sign!r} is missing in the expression")
