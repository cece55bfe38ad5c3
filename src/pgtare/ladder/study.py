"""A study file: variants, workloads, protocol, gates and the comparisons, declared beforehand."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from pgtare.errors import UsageError
from pgtare.estimate.rounds import attainable_p, rounds_for_level
from pgtare.instruments.catalogue import near
from pgtare.instruments.locate import line_of
from pgtare.ladder.duet_rules import why_not_by_duet
from pgtare.load import LoadSpec, Script
from pgtare.load.spec import cores

Setting = bool | int | float | str
Latency = Literal["latency_mean_us", "latency_p50_us", "latency_p95_us", "latency_p99_us"]
Metric = Literal["tps", "cpu_us"] | Latency
Kind = Literal["rounds", "duet"]
#: Where more of it is better; of the others less is.
HIGHER_IS_BETTER = frozenset({"tps"})
UNITS: dict[Metric, str] = {
    "tps": "tx/s",
    "cpu_us": "µs",
    "latency_mean_us": "µs",
    "latency_p50_us": "µs",
    "latency_p95_us": "µs",
    "latency_p99_us": "µs",
}
AGAIN = " again"  # ends the name of the floor's second run


def _share(value: Any) -> Any:
    """A share from "0.5%"; the sign is wanted, as 0.5 could be a half or half a percent."""
    if isinstance(value, str) and (found := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", value)):
        return float(found[1]) / 100
    raise ValueError(f'{value!r} is no percentage: write it as in "0.5%"')


def _seconds(value: Any) -> Any:
    """Seconds from "90s", "2m", "1h"."""
    units = {"s": 1, "m": 60, "h": 3600}
    if isinstance(value, str) and (found := re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", value)):
        return float(found[1]) * units[found[2]]
    raise ValueError(f'{value!r} is no duration: write it as in "30s", "2m"')


def _whole_seconds(value: Any) -> Any:
    seconds = _seconds(value)
    if seconds < 1 or seconds != int(seconds):
        raise ValueError(f"{value!r}: pgbench runs whole seconds, at least one")
    return int(seconds)


def _clients(value: Any) -> Any:
    """A number, or "2/core"."""
    if isinstance(value, str) and (found := re.fullmatch(r"(\d+)/core", value)):
        return int(found[1]) * cores()
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f'{value!r} is no number of clients: write it as in 8 or "2/core"')


Share = Annotated[float, BeforeValidator(_share)]
WholeSeconds = Annotated[int, BeforeValidator(_whole_seconds)]
Clients = Annotated[int, BeforeValidator(_clients), Field(ge=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.+-]{0,39}$")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Server(_Model):
    """Where a server's programs come from: the wheel, or an installation by its pg_config."""

    source: Literal["wheel"] | None = None
    pg_config: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Server:
        if (self.source is None) == (self.pg_config is None):
            raise ValueError('give either source = "wheel" or pg_config = "/path/to/pg_config"')
        return self


class Variant(_Model):
    """One rung: what a server preloads and sets.

    settings need a restart, runtime is put into force by a reload. capture: what
    wait_event_timing must be seen to do in it.
    """

    name: Name
    title: str = ""
    server: str = "main"
    preload: tuple[str, ...] = ()
    settings: dict[str, Setting] = {}
    runtime: dict[str, Setting] = {}
    capture: Literal["absent", "unhooked", "off", "stats", "trace"] = "absent"


class Expected(_Model):
    """What a workload's waits must look like.

    event: IO/DataFileRead, several of them, a class as LWLock/*, or * for every wait that is not
    idle. of: share of the time waited (waits for something to do left out unless they are named),
    or of the sessions' time.
    """

    event: str | tuple[str, ...]
    of: Literal["waits", "sessions"] = "waits"
    at_least: Share | None = None
    at_most: Share | None = None
    waits_per_transaction_at_least: float | None = None
    mean_us_at_least: float | None = None

    @property
    def events(self) -> tuple[str, ...]:
        return (self.event,) if isinstance(self.event, str) else self.event

    @model_validator(mode="after")
    def _says_something(self) -> Expected:
        if not self.model_fields_set - {"event", "of"}:
            raise ValueError("says nothing: give at_least, at_most, or another bound")
        return self


class Workload(_Model):
    """A load, what of it is measured, and the profile of waits that it must show.

    protocol: how it is played, as the study's where it names none. load: the rate as a share of
    saturation. oldest: the first PostgreSQL that can run it. metric
    is the one that is tested, `also` are shown beside it. counter: a query whose value must grow
    with the transactions.
    """

    name: Name
    title: str = ""
    protocol: Kind | None = None
    builtin: Literal["select-only", "simple-update", "tpcb-like"] | None = None
    script: str | None = None
    mode: Literal["simple", "extended", "prepared"] = "prepared"
    clients: Clients = 1
    scale: Annotated[int, Field(ge=1, le=21_474)] = 10
    load: Annotated[float, BeforeValidator(_share), Field(gt=0, lt=1)] | None = None
    preload: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    settings: dict[str, Setting] = {}
    prewarm: bool = False
    writes: bool = False
    oldest: Annotated[int, Field(ge=15, le=18)] = 15
    metric: Metric = "tps"
    also: tuple[Metric, ...] = ()
    sample: Share | None = None
    counter: str | None = None
    counted_per_transaction: float = 0.9
    idle_at_least: Share | None = None
    idle_at_most: Share | None = None
    profile: tuple[Expected, ...] = ()

    @model_validator(mode="after")
    def _one_load(self) -> Workload:
        if self.builtin is not None and self.script is not None:
            raise ValueError("builtin and script are two loads: give one")
        return self


class Comparison(_Model):
    """arm against base; on these workloads, or on all."""

    arm: str
    base: str
    workloads: tuple[str, ...] | None = None


class Duet(_Model):
    """Duet rounds: in a set of them each variant plays each cluster once. metric: what is tested.

    The median is the default: programs that take the processor away move the mean, not it.
    """

    sets: Annotated[int, Field(ge=2, le=1000)] = 12
    run: WholeSeconds = 5
    warm_up: WholeSeconds = 1
    metric: Latency = "latency_p50_us"


class Protocol(_Model):
    """How runs are laid out. half_width: stop a workload once every interval is so narrow.

    kind: that of the workloads which name none; restart: of rounds.
    """

    kind: Kind = "rounds"
    rounds: Annotated[int, Field(ge=2, le=1000)]
    run: WholeSeconds
    warm_up: WholeSeconds = 5
    restart: Literal["always", "needed"] = "always"
    half_width: Share | None = None
    duet: Duet = Duet()


class Analysis(_Model):
    """Level, margin, and the variant that is run twice a round for the floor."""

    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    margin: Share = 0.005
    floor: str


class Gates(_Model):
    """Bounds a run must keep; the run that does not is dropped, and its block with it."""

    steal_at_most: Share = 0.05
    other_load_at_most: Share = 0.05
    clock_step_ms: float = 50.0
    dropped_at_most: Share = 0.25


class QuickDuet(_Model):
    """What `--quick` changes of duet rounds; sets of many rounds are long, so few are enough."""

    sets: Annotated[int, Field(ge=2)] = 3
    run: WholeSeconds = 2
    warm_up: WholeSeconds = 1


class Quick(_Model):
    """What `--quick` changes. protocols: by workload."""

    rounds: Annotated[int, Field(ge=2)] = 3
    run: WholeSeconds = 3
    warm_up: WholeSeconds = 1
    duet: QuickDuet = QuickDuet()
    protocols: dict[str, Kind] = {}
    workloads: tuple[str, ...] | None = None


class Study(_Model):
    """A study file."""

    title: str
    about: str = ""
    servers: dict[str, Server] = {"main": Server(source="wheel")}
    protocol: Protocol
    analysis: Analysis
    gates: Gates = Gates()
    quick: Quick = Quick()
    variant: tuple[Variant, ...] = Field(min_length=1)
    workload: tuple[Workload, ...] = Field(min_length=1)
    comparison: tuple[Comparison, ...] = Field(min_length=1)
    #: workloads whose first comparison is shown in flame graphs as well, once the runs are done
    flames: tuple[str, ...] = ()

    def the_variant(self, name: str) -> Variant:
        """The variant by name, also by the name of the floor's second run."""
        return next(v for v in self.variant if v.name == name.removesuffix(AGAIN))

    def the_workload(self, name: str) -> Workload:
        return next(w for w in self.workload if w.name == name)

    def compared(self, workload: str) -> tuple[Comparison, ...]:
        """The comparisons declared for a workload, in order."""
        return tuple(c for c in self.comparison if c.workloads is None or workload in c.workloads)

    @property
    def family(self) -> int:
        """How many comparisons Holm's correction is over."""
        return sum(len(self.compared(w.name)) for w in self.workload)

    @property
    def in_a_round(self) -> tuple[str, ...]:
        """The runs of one round: every variant once, the floor's twice."""
        return (*(v.name for v in self.variant), self.analysis.floor + AGAIN)

    def kind(self, workload: Workload) -> Kind:
        """The protocol that a workload is played by."""
        return workload.protocol or self.protocol.kind

    def blocks_planned(self, workload: Workload) -> int:
        """The planned units of inference of a workload: its rounds, or a duet's sets of rounds."""
        by_duet = self.kind(workload) == "duet"
        return self.protocol.duet.sets if by_duet else self.protocol.rounds

    def resolved(self) -> Study:
        """The study with every workload's protocol named, and what a duet tests and describes.

        A duet has no throughput: it tests its own metric, and the other latencies stand beside it.
        """
        tested = self.protocol.duet.metric
        also: tuple[Metric, ...] = tuple(m for m in UNITS if m not in ("tps", tested))
        return self.model_copy(
            update={
                "workload": tuple(
                    w.model_copy(
                        update={"protocol": "duet", "metric": tested, "also": also}
                        if self.kind(w) == "duet"
                        else {"protocol": "rounds"}
                    )
                    for w in self.workload
                )
            }
        )

    def load_spec(self, workload: Workload, directory: Path, rate: float | None) -> LoadSpec:
        """What to drive; scripts are found beside the study file."""
        scripts = (Script(directory / workload.script),) if workload.script else ()
        return LoadSpec(
            builtin=workload.builtin or "select-only",
            scripts=scripts,
            protocol=workload.mode,
            clients=workload.clients,
            rate=rate,
        )

    def made_quick(self) -> Study:
        """The study as `--quick` runs it."""
        quick = self.quick
        chosen = set(quick.workloads or [w.name for w in self.workload])
        duet = self.protocol.duet.model_copy(update=quick.duet.model_dump())
        changed = {"rounds": quick.rounds, "run": quick.run, "warm_up": quick.warm_up, "duet": duet}
        return self.model_copy(
            update={
                "protocol": self.protocol.model_copy(update=changed),
                "workload": tuple(
                    w.model_copy(update={"protocol": quick.protocols.get(w.name, w.protocol)})
                    for w in self.workload
                    if w.name in chosen
                ),
            }
        )

    def only(self, names: Sequence[str]) -> Study:
        """The study on these workloads. Raises UsageError for one that there is not."""
        known = [w.name for w in self.workload]
        for name in names:
            if name not in known:
                raise UsageError(f"there is no workload {name!r}{near(name, known)}")
        return self.model_copy(
            update={"workload": tuple(w for w in self.workload if w.name in names)}
        )


def read(path: Path) -> tuple[Study, str]:
    """A study and its text. Raises UsageError naming file, line and key for what is wrong."""
    try:
        source = path.read_text(encoding="utf-8")
    except OSError as ex:
        raise UsageError(f"cannot read the study {path}: {ex.strerror}") from ex
    except UnicodeDecodeError as ex:
        raise UsageError(f"the study {path} is not UTF-8 text") from ex
    return parse(source, str(path)), source


def parse(source: str, file: str) -> Study:
    """A study from its text; `file` is for messages."""
    try:
        document = tomllib.loads(source)
    except tomllib.TOMLDecodeError as ex:
        raise UsageError(_syntax(str(ex), source, file)) from ex
    try:
        study = Study.model_validate(document)
    except ValidationError as ex:
        # A misspelt key is both unknown and missing; the first says more.
        errors = sorted(ex.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")
        raise UsageError(_told(dict(errors[0]), source, file)) from ex
    _check_names(study, source, file)
    return study


def check_rounds(study: Study, *, quick: bool) -> str | None:
    """Whether the rounds, or a duet's sets, can reach the declared level at all.

    Raises UsageError where they cannot; with `quick` the sentence is returned instead, to be said
    before anything is run.
    """
    family, alpha = study.family, study.analysis.alpha
    needed = rounds_for_level(alpha, family)
    planned: dict[str, int] = {}
    for workload in study.workload:
        by_duet = study.kind(workload) == "duet"
        planned["sets" if by_duet else "rounds"] = study.blocks_planned(workload)
    few = {key: n for key, n in planned.items() if n < needed}
    if not few:
        return None
    asking = "1 comparison" if family == 1 else f"{family} comparisons"
    asked = f"{'asks' if family == 1 else 'ask'} for {alpha / max(family, 1):.2g}"
    reached = ", ".join(
        f"{n} {'sets of a duet' if key == 'sets' else key} reach p = {attainable_p(n):.3g}"
        for key, n in few.items()
    )
    sentence = f"{reached} at best, and {asking} at α = {alpha:g} {asked}"
    if quick:
        return f"{sentence}: these short rounds show sizes, they cannot settle anything"
    raise UsageError(
        f"{sentence}: set {' and '.join(few)} = {needed} or more, or declare fewer comparisons"
    )


def _syntax(message: str, source: str, file: str) -> str:
    """What tomllib found wrong, with the place in front."""
    told, _, where = message.partition(" (at ")
    found = re.match(r"line (\d+)", where)
    line = int(found[1]) if found else max(len(source.splitlines()), 1)
    return f"{file}, line {line}: {told[:1].lower()}{told[1:]}"


def _told(error: dict[str, Any], source: str, file: str) -> str:
    """One sentence for what pydantic found wrong."""
    location = tuple(part for part in error["loc"] if part not in ("str", "tuple", "[key]"))
    dotted = ".".join(str(part) for part in location if not isinstance(part, int))
    where = f"{file}, line {line_of(source, location)}: "
    if error["type"] == "extra_forbidden":
        key = str(location[-1])
        inside = f" in {dotted.rpartition('.')[0]}" if "." in dotted else ""
        return f"{where}unknown key {key!r}{inside}{near(key, _KEYS)}"
    if error["type"] == "missing":
        return f"{where}{dotted} is missing"
    reason = str(error.get("ctx", {}).get("error", error["msg"])).removeprefix("Value error, ")
    return f"{where}{dotted}: {reason[:1].lower()}{reason[1:]}"


_KEYS = sorted(
    {
        name
        for model in (
            Study, Server, Variant, Expected, Workload, Comparison, Duet, Protocol, Analysis, Gates,
            QuickDuet, Quick,
        )
        for name in model.model_fields
    }
)  # fmt: skip


def _check_names(study: Study, source: str, file: str) -> None:
    def refuse(location: tuple[str | int, ...], reason: str) -> None:
        raise UsageError(f"{file}, line {line_of(source, location)}: {reason}")

    variants = [v.name for v in study.variant]
    workloads = [w.name for w in study.workload]
    for kind, names in (("variant", variants), ("workload", workloads)):
        for i, name in enumerate(names):
            if name in names[:i]:
                refuse((kind, i, "name"), f"there is already a {kind} {name!r}")
    for i, variant in enumerate(study.variant):
        if variant.server not in study.servers:
            refuse(
                ("variant", i, "server"),
                f"variant {variant.name} names the server {variant.server!r}, which "
                f"[servers] lacks{near(variant.server, study.servers)}",
            )
    if study.analysis.floor not in variants:
        refuse(
            ("analysis", "floor"),
            f"the floor names the variant {study.analysis.floor!r}, which is absent"
            f"{near(study.analysis.floor, variants)}",
        )
    for i, comparison in enumerate(study.comparison):
        for key in ("arm", "base"):
            name = getattr(comparison, key)
            if name not in variants:
                refuse(
                    ("comparison", i, key),
                    f"a comparison names the variant {name!r}, which is absent"
                    f"{near(name, variants)}",
                )
        if comparison.arm == comparison.base:
            refuse(("comparison", i, "arm"), f"{comparison.arm} is compared with itself")
        for name in comparison.workloads or ():
            if name not in workloads:
                refuse(
                    ("comparison", i, "workloads"),
                    f"a comparison names the workload {name!r}, which is absent"
                    f"{near(name, workloads)}",
                )
    for name in study.quick.workloads or ():
        if name not in workloads:
            refuse(("quick", "workloads"), f"quick names the workload {name!r}, which is absent")
    for name in study.flames:
        if name not in workloads:
            refuse(("flames",), f"flames names the workload {name!r}, which is absent")
    for name in study.quick.protocols:
        if name not in workloads:
            refuse(
                ("quick", "protocols"),
                f"quick.protocols names the workload {name!r}, which is absent"
                f"{near(name, workloads)}",
            )
    for i, workload in enumerate(study.workload):
        by_quick = study.quick.protocols.get(workload.name) == "duet"
        if (study.kind(workload) == "duet" or by_quick) and (why := why_not_by_duet(workload)):
            refuse(
                ("workload", i, "protocol") if workload.protocol else
                ("quick", "protocols") if by_quick else ("workload", i, "name"),
                f"{workload.name} must not be played by duet, as {why}: play it by rounds",
            )  # fmt: skip


def per_round(study: Study) -> int:
    """Runs in a round."""
    return len(study.in_a_round)


def percent(share: float) -> str:
    """A share as people write it: 0.5 %."""
    return f"{100 * share:g} %" if math.isfinite(share) else "?"
