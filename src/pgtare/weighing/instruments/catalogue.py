"""Reads the catalogue of instruments, the one shipped and the user's, and looks names up in it."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from pgtare.errors import UsageError
from pgtare.weighing.instruments.model import Chosen, Entry, FlagRule, Needs, SqlRule, Variant
from pgtare.weighing.instruments.toml_lines import line_of

_MODELS: tuple[type[BaseModel], ...] = (Entry, Variant, Needs, FlagRule, SqlRule)
_KNOWN_KEYS = sorted({key for model in _MODELS for key in model.model_fields} - {"name"})


class Catalogue(dict[str, Entry]):
    """Instruments by name, in the order of their files."""

    def choose(self, spec: str) -> Chosen:
        """The arm called `instrument` (its first variant) or `instrument/variant`.

        Raises UsageError, with the nearest names, if there is none of that name.
        """
        name, slash, variant = spec.strip().partition("/")
        entry = self.get(name)
        if entry is None:
            known, colon, _ = name.partition(":")
            if colon and known in self:
                raise UsageError(f"{name!r}: a variant is written {name.replace(':', '/')}")
            raise UsageError(
                f"there is no instrument {name!r}{near(name, self)};"
                f" the catalogue has {', '.join(self)}"
            )
        if slash and variant not in entry.variants:
            raise UsageError(
                f"instrument {name} has no variant {variant!r}{near(variant, entry.variants)};"
                f" it has {', '.join(entry.variants)}"
            )
        return Chosen.variant(entry, variant if slash else entry.default_variant)


def near(name: str, names: Sequence[str] | Mapping[str, object]) -> str:
    """` (did you mean x or y?)` for the names most like `name`, or nothing."""
    found = difflib.get_close_matches(name, list(names), n=2, cutoff=0.7)
    if not found:
        found = [other for other in names if len(name) > 2 and (name in other or other in name)][:3]
    return f" (did you mean {' or '.join(found)}?)" if found else ""


def load_catalogue(extra: Sequence[Path] = ()) -> Catalogue:
    """The shipped catalogue with the user's files added to it.

    Raises UsageError naming file, line and key for anything wrong in a user's file, and if it
    gives an instrument a name that is already taken.
    """
    shipped = resources.files("pgtare.weighing.instruments").joinpath("catalogue.toml")
    entries = Catalogue(parse(shipped.read_text(encoding="utf-8"), "catalogue.toml"))
    for path in extra:
        try:
            source = path.read_text(encoding="utf-8")
        except OSError as ex:
            raise UsageError(f"cannot read catalogue {path}: {ex.strerror}") from ex
        except UnicodeDecodeError as ex:
            raise UsageError(f"catalogue {path} is not UTF-8 text") from ex
        for name, entry in parse(source, str(path)).items():
            if name in entries:
                raise UsageError(
                    f"{path}, line {line_of(source, (name,))}: there is already an instrument"
                    f" {name!r} in the catalogue; give yours another name"
                )
            entries[name] = entry
    return entries


def parse(source: str, file: str) -> dict[str, Entry]:
    """The entries of one catalogue document; `file` is for messages.

    Raises UsageError naming file, line and key.
    """
    try:
        document = tomllib.loads(source)
    except tomllib.TOMLDecodeError as ex:
        raise UsageError(_syntax_message(str(ex), source, file)) from ex
    return {name: _entry(name, raw, source, file) for name, raw in document.items()}


def _syntax_message(message: str, source: str, file: str) -> str:
    at = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    if at is None:
        return f"{file}: {message}"
    line = int(at[1]) if at[1] else len(source.splitlines())
    lines = source.splitlines()
    shown = f": {lines[line - 1].strip()}" if 0 < line <= len(lines) else ""
    return f"{file}, line {line}: {message[: at.start()]}{shown}"


def _entry(name: str, raw: Any, source: str, file: str) -> Entry:
    if not isinstance(raw, dict):
        line = line_of(source, (name,))
        raise UsageError(f"{file}, line {line}: {name!r} must be a table, [{name}]")
    if "name" in raw:
        line = line_of(source, (name, "name"))
        raise UsageError(f"{file}, line {line}: unknown key 'name'; the name is [{name}] itself")
    try:
        return Entry.model_validate({**raw, "name": name})
    except ValidationError as ex:
        # A misspelt key is both unknown and missing; the first says more.
        errors = sorted(ex.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")
        error = errors[0]
        raise UsageError(_invalid_message(name, dict(error), source, file)) from ex


def _invalid_message(name: str, error: dict[str, Any], source: str, file: str) -> str:
    """One sentence for the first thing pydantic found wrong."""
    inside = tuple(part for part in error["loc"] if part != "[key]")
    keys = [str(part) for part in inside if part not in ("flag rule", "sql rule")]
    dotted = ".".join([name, *keys])
    reason = str(error.get("ctx", {}).get("error", error["msg"])).removeprefix("Value error, ")
    line = line_of(source, (name, *inside, *_quoted_settings(reason)))
    where = f"{file}, line {line}: "
    if error["type"] == "extra_forbidden":
        return f"{where}unknown key {keys[-1]!r} in {'.'.join([name, *keys[:-1]])}" + near(
            keys[-1], _KNOWN_KEYS
        )
    if error["type"] == "missing":
        return f"{where}{dotted} is missing"
    return f"{where}{dotted}: {reason[:1].lower()}{reason[1:]}"


def _quoted_settings(reason: str) -> tuple[str, ...]:
    """The key a settings validator complained about, which is not in pydantic's location."""
    quoted = re.match(r"'([^']+)' is not the name|([\w.]+) cannot be part|([\w.]+): ", reason)
    return tuple(part for part in quoted.groups() if part) if quoted else ()
