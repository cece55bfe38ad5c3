"""What is switched for the whole server: commands, a process, or a setting of its configuration."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from pgtare.errors import UsageError

#: process: runs in its windows only. commands: was on before, and is on afterwards. setting: of
#: the server's configuration, by ALTER SYSTEM.
Kind = Literal["process", "commands", "setting"]

_NAMED = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]{0,62})\s*:\s+(\S.*?)\s*", re.DOTALL)
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_$.]*)\s*=\s*(.*)", re.DOTALL)
_QUOTED = re.compile(r"'(.*)'", re.DOTALL)
_NAMES_OF_OURS = ("base", "control")
#: How long a command may take, in s: a provider's takes minutes.
COMMAND_S = 900.0


@dataclass(frozen=True)
class Switch:
    """Something with an on and an off. on, off: shell commands. setting, value: of the server.

    Of commands, setting and value are what pg_settings shows while it is on, if given.
    """

    name: str
    kind: Kind
    on: str = ""
    off: str = ""
    setting: str = ""
    value: str = ""

    @classmethod
    def parse(cls, text: str) -> Switch:
        """From `NAME: COMMAND` or `NAME: ON | OFF` or `NAME: ON | OFF | setting = value`.

        Raises UsageError.
        """
        name, rest = _named("--switch", text, "exporter: systemctl start x | systemctl stop x")
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
        name, rest = _named("--reload", text, "log: log_min_messages = debug1")
        setting, value = _assigned("--reload", name, rest)
        return cls(name, "setting", setting=setting, value=value)

    @property
    def is_left_on(self) -> bool:
        """Whether it was on before, and is to be on afterwards."""
        return self.kind == "commands"

    def as_json(self) -> dict[str, Any]:
        """For another process, and for the file of what is to be put back."""
        return dict(vars(self))


def check_names(switches: list[Switch]) -> None:
    """Raise UsageError if two have one name, or one of ours."""
    names = [switch.name for switch in switches]
    if len(set(names)) < len(names) or set(names) & set(_NAMES_OF_OURS):
        raise UsageError(
            "--switch and --reload: give each a name of its own, and none of them "
            f"{' or '.join(_NAMES_OF_OURS)}"
        )


def _named(option: str, text: str, example: str) -> tuple[str, str]:
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        raise UsageError(f"{option} is not UTF-8 text")
    found = _NAMED.fullmatch(text)
    if found is None:
        raise UsageError(
            f"{option}: give a name of letters, digits, '.', '_' or '-', a colon, a blank and what "
            f"is switched, as in {option} '{example}'"
        )
    return found[1], found[2]


def _assigned(option: str, name: str, text: str) -> tuple[str, str]:
    found = _ASSIGNED.fullmatch(text)
    if found is None:
        raise UsageError(f"{option} {name}: give a setting as in 'log_min_messages = debug1'")
    value = found[2].strip()
    quoted = _QUOTED.fullmatch(value)
    return found[1].lower(), quoted[1].replace("''", "'") if quoted else value
