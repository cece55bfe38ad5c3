"""What an instrument is: the checked form of a catalogue entry, its variants and proof rules."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

NAME = re.compile(r"[a-z0-9_]+")
_SETTING = re.compile(r"[a-z_][a-z0-9_$]*(?:\.[a-z_][a-z0-9_$]*)*")
_LIBRARY = re.compile(r"[a-z0-9_-]+", re.IGNORECASE)

#: The arm in which all instruments are on.
TOGETHER = "all_together"
#: Arm names the trial itself uses.
RESERVED_NAMES = frozenset({"base", "control", "injected", TOGETHER})

#: Settings no arm may hold: they change whose the session is, how we read what it sends, or the
#: transaction it is in, or nobody can set them.
REFUSED_SETTINGS = frozenset(
    {
        "application_name",
        "client_encoding",
        "default_transaction_read_only",
        "in_hot_standby",
        "integer_datetimes",
        "is_superuser",
        "role",
        "scram_iterations",
        "server_encoding",
        "server_version",
        "session_authorization",
        "standard_conforming_strings",
        "transaction_deferrable",
        "transaction_isolation",
        "transaction_read_only",
    }
)

#: A change of these is reported to the client with the next reply: nobody sees that in a session of
#: our own, so from outside arms may hold them.
REPORTED_SETTINGS = frozenset({"datestyle", "intervalstyle", "search_path", "timezone"})


def setting_name(name: str, *, reported: bool = False) -> str:
    """The name of a setting, lower case as PostgreSQL compares it.

    reported: one whose change is reported to the client is allowed. Raises ValueError if it is no
    identifier (so it can never carry SQL) or is refused.
    """
    folded = name.lower()
    if not _SETTING.fullmatch(folded):
        raise ValueError(f"{name!r} is not the name of a setting")
    if folded in REFUSED_SETTINGS or (folded in REPORTED_SETTINGS and not reported):
        raise ValueError(f"{name} cannot be part of an arm: changing it is visible to the client")
    return folded


def setting_value(value: object) -> str:
    """A setting's value as PostgreSQL reads it: true and false become on and off.

    Raises ValueError for anything but a string, a number or a boolean.
    """
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError("a value cannot contain a zero byte")
        return value
    raise ValueError("a setting's value must be a string, a number or a boolean")


def _settings(raw: object) -> object:
    if not isinstance(raw, dict):
        raise ValueError("settings must be a table of name = value")
    checked: dict[str, str] = {}
    for name, value in raw.items():
        folded = setting_name(str(name))
        if folded in checked:
            raise ValueError(f"setting {folded} is given twice")
        try:
            checked[folded] = setting_value(value)
        except ValueError as ex:
            raise ValueError(f"{name}: {ex}") from ex
    return checked


Settings = Annotated[dict[str, str], BeforeValidator(_settings)]


#: Bits that are evidence, and what a transaction with the bit did, for "12 of 12 transactions ...".
EVIDENCE = {
    "LOGGED": "wrote to the log",
    "INSTRUMENTED": "ran with per-node instrumentation",
    "TOTAL_TIMED": "ran with whole-query timing",
    "QUERY_ID": "carried a query id",
    "BLOCKS_READ": "read a block from outside shared buffers",
    "IO_TIMED": "timed their reads and writes",
    "SYSTEM_CLOCK": "took times from the system's clock",
    "EXECUTED": "ran a plan",
}


def _flag_name(name: str) -> str:
    if name not in EVIDENCE:
        raise ValueError(f"no evidence bit {name!r}; there are {', '.join(EVIDENCE)}")
    return name


FlagName = Annotated[str, BeforeValidator(_flag_name)]
State = Literal["idle", "missing"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FlagRule(_Model):
    """Evidence from the bits the server module keeps of each transaction.

    expect, of the arm's transactions which carry `where` (all, if it is not given):
    "most": at least `share` of them carry `flag`; "about": `share` of them, within the error of
    sampling, or more up to `at_most`; "some": any at all; "none": no more than in the base arm.
    The base arm may carry the flag in `base_at_most` of its transactions (a hundredth, or a tenth
    of `share` if that is less); above that it is contaminated. `otherwise`: the state if the
    evidence is not there.
    """

    flag: FlagName
    where: FlagName | None = None
    expect: Literal["most", "about", "some", "none"] = "most"
    share: float = Field(default=0.95, gt=0, le=1)
    at_most: float = Field(default=1.0, gt=0, le=1)
    base_at_most: float | None = Field(default=None, ge=0, lt=1)
    otherwise: State = "missing"
    hint: str = ""

    @property
    def base_limit(self) -> float:
        """The share of the base arm's transactions from which on it counts as contaminated."""
        return min(0.01, self.share / 10) if self.base_at_most is None else self.base_at_most


class SqlRule(_Model):
    """Evidence from a counter of the server, read before and after the trial.

    sql returns one number, which must grow: by more than zero, and by at least `per_unit` for each
    of the arm's transactions that executed a plan. work_sql counts the work there was to watch:
    if it grew by no more than `work_per_unit` a transaction, the instrument was idle. A change
    of void_sql means that sql cannot be trusted. Versions are major ones (15).
    """

    sql: str = Field(min_length=1)
    label: str = Field(min_length=1, description="the counter in words")
    per_unit: float = Field(default=0.0, ge=0)
    work_sql: str | None = None
    work_label: str = "work"
    work_per_unit: float = Field(default=0.0, ge=0)
    void_sql: str | None = None
    void_reason: str = "the counter lost entries"
    otherwise: State = "missing"
    min_version: int | None = None
    max_version: int | None = None
    hint: str = ""

    def applies(self, major: int) -> bool:
        """Whether the rule is meant for servers of this major version."""
        return (self.min_version or 0) <= major <= (self.max_version or major)

    @property
    def statements(self) -> tuple[str, ...]:
        """Every statement whose number is needed before and after the trial."""
        return tuple(s for s in (self.sql, self.work_sql, self.void_sql) if s is not None)


def _rule_kind(raw: Any) -> str | None:
    if isinstance(raw, FlagRule) or (isinstance(raw, dict) and "flag" in raw):
        return "flag rule"
    return (
        "sql rule" if isinstance(raw, SqlRule) or (isinstance(raw, dict) and "sql" in raw) else None
    )


Rule = Annotated[
    Annotated[FlagRule, Tag("flag rule")] | Annotated[SqlRule, Tag("sql rule")],
    Discriminator(
        _rule_kind,
        custom_error_type="proof_rule",
        custom_error_message="a proof rule needs `flag` or `sql`",
    ),
]


class Needs(_Model):
    """What the server must offer before the instrument can be weighed. Versions are major ones."""

    preload: list[str] = []
    session_preload: bool = Field(
        default=False, description="session_preload_libraries will do as well"
    )
    extension: str | None = None
    min_version: int | None = None
    max_version: int | None = None
    settings: list[str] = []
    start: dict[str, str] = Field(
        default={}, description="settings that a private server is started with"
    )

    @field_validator("preload")
    @classmethod
    def _libraries(cls, names: list[str]) -> list[str]:
        for name in names:
            if not _LIBRARY.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of a library")
        return names

    @field_validator("extension")
    @classmethod
    def _extension(cls, name: str | None) -> str | None:
        if name is not None and not _LIBRARY.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of an extension")
        return name

    @field_validator("settings")
    @classmethod
    def _names(cls, names: list[str]) -> list[str]:
        return [setting_name(name) for name in names]


class Variant(_Model):
    """One way of switching an instrument on. A proof of its own replaces the entry's."""

    settings: Settings = Field(min_length=1)
    description: str = ""
    proof: list[Rule] | None = None


class Entry(_Model):
    """An instrument: what switches it off (base) and on (variants), and how to tell that it ran."""

    name: str
    description: str = Field(min_length=1)
    base: Settings = {}
    variants: dict[str, Variant] = Field(min_length=1)
    needs: Needs = Needs()
    safe_in_production: bool
    reason: str = Field(min_length=1, description="why it is safe, or why not")
    remarks: list[str] = []
    proof: list[Rule] = []

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError(f"name {name!r} may hold only a-z, 0-9 and _")
        if name in RESERVED_NAMES:
            raise ValueError(f"name {name!r} is taken by the trial itself")
        return name

    @field_validator("description")
    @classmethod
    def _one_line(cls, text: str) -> str:
        if "\n" in text:
            raise ValueError("the description must be one line")
        return text

    @model_validator(mode="after")
    def _variants(self) -> Entry:
        for name, variant in self.variants.items():
            if not NAME.fullmatch(name):
                raise ValueError(f"variant name {name!r} may hold only a-z, 0-9 and _")
            if {**self.base, **variant.settings} == self.base:
                raise ValueError(f"variant {name} sets nothing that the base does not")
        return self

    @property
    def default_variant(self) -> str:
        """The first variant: what the bare name of the entry means."""
        return next(iter(self.variants))

    def arm_name(self, variant: str) -> str:
        """`instrument` for the default variant, `instrument/variant` for the others."""
        return self.name if variant == self.default_variant else f"{self.name}/{variant}"

    @property
    def setting_names(self) -> frozenset[str]:
        """Every setting that the entry's base and variants touch, and those it needs."""
        touched = {name for v in self.variants.values() for name in v.settings}
        return frozenset(touched | set(self.base) | set(self.needs.settings))


@dataclass(frozen=True)
class Chosen:
    """A requested arm: a variant of a catalogue entry, or an ad hoc one (entry None)."""

    name: str
    settings: dict[str, str]
    base: dict[str, str] = field(default_factory=dict)
    rules: tuple[FlagRule | SqlRule, ...] = ()
    entry: Entry | None = None

    @classmethod
    def variant(cls, entry: Entry, variant: str) -> Chosen:
        """The arm of one variant of an entry (KeyError if there is none of that name)."""
        chosen = entry.variants[variant]
        rules = entry.proof if chosen.proof is None else chosen.proof
        return cls(entry.arm_name(variant), chosen.settings, entry.base, tuple(rules), entry)
