"""What is switched for the whole server: commands, a process, or a setting of its configuration."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pgtare.errors import UsageError

#: process: runs in its windows only. commands: switch something on and off, and leave it as it was.
#: setting: of the server's configuration, by ALTER SYSTEM.
Kind = Literal["process", "commands", "setting"]

_NAMED = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]{0,62})\s*:\s+(\S.*?)\s*", re.DOTALL)
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_$.]*)\s*=\s*(.*)", re.DOTALL)
_QUOTED = re.compile(r"'(.*)'", re.DOTALL)
#: What a shell takes literally, and a bar with a blank on one side only; || and >| are no such bar.
_LITERAL = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
_UNEVEN_BAR = re.compile(r"(?:^|\s)\|(?=[^\s|])|(?<=[^\s|>])\|(?:\s|$)")
_NAMES_OF_OURS = ("base", "control")
#: How long a command may take, in s: a provider's takes minutes.
COMMAND_S = 900.0


@dataclass(frozen=True)
class Switch:
    """Something with an on and an off. on, off: shell commands. setting, value: of the server.

    Of commands, setting and value are what pg_settings shows while it is on, if given, and was_on
    is whether it was on before: without a setting it was. shown: what it was, if that is no secret.
    """

    name: str
    kind: Kind
    on: str = ""
    off: str = ""
    setting: str = ""
    value: str = ""
    was_on: bool = True
    shown: str = ""

    @classmethod
    def parse(cls, text: str) -> Switch:
        """From `NAME: COMMAND` or `NAME: ON | OFF` or `NAME: ON | OFF | setting = value`.

        Raises UsageError.
        """
        example = "exporter: systemctl start x | systemctl stop x"
        name, rest = named("--switch", text, f"what is switched, as in --switch '{example}'")
        if _UNEVEN_BAR.search(_LITERAL.sub("_", rest)):
            raise UsageError(
                f"--switch {name}: a '|' has a blank on one side only; write ' | ' between the "
                "command that switches on and the one that switches off, and put a pipeline into "
                "a script"
            )
        parts = [part.strip() for part in re.split(r"\s\|(?:\s|$)", rest)]
        if len(parts) > 3 or not all(parts):
            raise UsageError(
                f"--switch {name}: give a command, or the one that switches on, ' | ' and the one "
                "that switches off; put a pipeline into a script"
            )
        if len(parts) == 1:
            return cls(name, "process", on=parts[0])
        shown = _assigned("--switch", name, parts[2]) if len(parts) == 3 else ("", "")
        return cls(name, "commands", parts[0], parts[1], *shown)

    @classmethod
    def parse_reload(cls, text: str) -> Switch:
        """From `NAME: setting = value`. Raises UsageError."""
        example = "what is switched, as in --reload 'log: log_min_messages = debug1'"
        name, rest = named("--reload", text, example)
        setting, value = _assigned("--reload", name, rest)
        return cls(name, "setting", setting=setting, value=value)

    @property
    def is_left_on(self) -> bool:
        """Whether it was on before, and is to be on afterwards."""
        return self.kind == "commands" and self.was_on

    @property
    def off_value(self) -> str:
        """What the setting of commands is while they are off; empty if it is not known."""
        return "" if self.was_on else self.shown

    @property
    def as_it_was(self) -> tuple[str, str]:
        """Of commands, the one that puts it back, and "on" or "off"."""
        return (self.on, "on") if self.was_on else (self.off, "off")

    def as_json(self) -> dict[str, Any]:
        """For another process, and for the file of what is to be put back."""
        return dict(vars(self))


def check_names(options: str, names: Sequence[str]) -> None:
    """Raise UsageError if two are the same, or one is ours."""
    if len(set(names)) < len(names) or set(names) & set(_NAMES_OF_OURS):
        raise UsageError(
            f"{options}: give each a name of its own, and none of them "
            f"{' or '.join(_NAMES_OF_OURS)}"
        )


def named(option: str, text: str, what: str) -> tuple[str, str]:
    """Both parts of `NAME: REST`. what: the rest in words, with an example.

    Raises UsageError; the text is not repeated, it may hold a password.
    """
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        raise UsageError(f"{option} is not UTF-8 text")
    found = _NAMED.fullmatch(text)
    if found is None:
        raise UsageError(
            f"{option}: give a name of letters, digits, '.', '_' or '-', a colon, a blank and "
            f"{what}"
        )
    return found[1], found[2]


def _assigned(option: str, name: str, text: str) -> tuple[str, str]:
    found = _ASSIGNED.fullmatch(text)
    if found is None:
        raise UsageError(f"{option} {name}: give a setting as in 'log_min_messages = debug1'")
    value = found[2].strip()
    quoted = _QUOTED.fullmatch(value)
    return found[1].lower(), quoted[1].replace("''", "'") if quoted else value
