"""Reads the catalogue of instruments, the one shipped and the user's, and looks names up in it."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from pgtare.errors import UsageError
from pgtare.weighing.instruments.model import Chosen, Entry, FlagRule, Needs, SqlRule, Variant

_MODELS: tuple[type[BaseModel], ...] = (Entry, Variant, Needs, FlagRule, SqlRule)
#: What validators add to the place of a fault.
_ADDED = ("[key]", "flag rule", "sql rule", "str", "tuple")
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

    Raises UsageError naming file and key for anything wrong in a user's file, and if it gives an
    instrument a name that is already taken.
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
                    f"{path}: there is already an instrument {name!r} in the catalogue; give yours "
                    "another name"
                )
            entries[name] = entry
    return entries


def parse(source: str, file: str) -> dict[str, Entry]:
    """The entries of one catalogue document; `file` is for messages.

    Raises UsageError naming file and key.
    """
    try:
        document = tomllib.loads(source)
    except tomllib.TOMLDecodeError as ex:
        raise UsageError(f"{file}: {ex}") from ex
    return {name: _entry(name, raw, file) for name, raw in document.items()}


def _entry(name: str, raw: Any, file: str) -> Entry:
    if not isinstance(raw, dict):
        raise UsageError(f"{file}: {name!r} must be a table, [{name}]")
    if "name" in raw:
        raise UsageError(f"{file}: unknown key 'name'; the name is [{name}] itself")
    try:
        return Entry.model_validate({**raw, "name": name})
    except ValidationError as ex:
        raise UsageError(f"{file}: {first_fault(ex, lambda _: _KNOWN_KEYS, name)}") from ex


def first_fault(
    ex: ValidationError, keys_at: Callable[[tuple[str | int, ...]], Sequence[str]], *table: str
) -> str:
    """One sentence for what pydantic found wrong in a file.

    keys_at: the keys that a table of the file takes. table: the one that was validated. Tables of
    one name are numbered from 1.
    """
    # A misspelt key is both unknown and missing; the first says more.
    errors = sorted(ex.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")
    error: dict[str, Any] = dict(errors[0])
    location = tuple(part for part in error["loc"] if part not in _ADDED)
    keys = [*table, *(str(part + 1 if isinstance(part, int) else part) for part in location)]
    if error["type"] == "extra_forbidden":
        inside = f" in {'.'.join(keys[:-1])}" if keys[1:] else ""
        return f"unknown key {keys[-1]!r}{inside}{near(keys[-1], keys_at(location[:-1]))}"
    dotted = ".".join(keys)
    if error["type"] == "missing":
        return f"{dotted} is missing"
    reason = str(error.get("ctx", {}).get("error", error["msg"])).removeprefix("Value error, ")
    return f"{dotted}: {reason[:1].lower()}{reason[1:]}"
