"""A study file: variants, workloads, protocol, gates and the comparisons, declared beforehand."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from pgtare.errors import UsageError
from pgtare.instruments.catalogue import near
from pgtare.ladder import factorial
from pgtare.ladder.activity import Activity
from pgtare.ladder.kinds import BY, Kind
from pgtare.ladder.quantities import Clients, Name, Share, WholeSeconds, share
from pgtare.load import LoadSpec, Script
from pgtare.server.source import Recipe

Setting = bool | int | float | str
Latency = Literal["latency_mean_us", "latency_p50_us", "latency_p95_us", "latency_p99_us"]
Service = Literal["service_us", "service_p50_us", "service_p99_us"]
Metric = Literal["tps", "cpu_us"] | Latency | Service
#: Where more of it is better; of the others less is.
HIGHER_IS_BETTER = frozenset({"tps"})
UNITS: dict[Metric, str] = {
    "tps": "tx/s",
    "cpu_us": "µs",
    "latency_mean_us": "µs",
    "latency_p50_us": "µs",
    "latency_p95_us": "µs",
    "latency_p99_us": "µs",
    "service_us": "µs",
    "service_p50_us": "µs",
    "service_p99_us": "µs",
}
#: Measured inside the server, transaction by transaction.
SERVICE: tuple[Service, ...] = ("service_us", "service_p50_us", "service_p99_us")
#: Fewer linkings have no spread to speak of.
FEWEST_LAYOUTS = 3
AGAIN = " again"  # ends the name of the floor's second run
TEMPLATE = ".j2"  # ends the name of a script that is filled in with the workload's values


def _several(value: Any) -> Any:
    if isinstance(value, list) and len({str(one) for one in value}) < len(value):
        raise ValueError("names a protocol twice")
    return (value,) if isinstance(value, str) else value


Kinds = Annotated[tuple[Kind, ...], BeforeValidator(_several)]


def _quoted(value: Any) -> Any:
    for name, inner in value.items() if isinstance(value, dict) else ():
        if isinstance(inner, dict):
            whole = f"{name}.{next(iter(inner), '')}"
            raise ValueError(f'a name with a dot wants quotes, as in "{whole}"')
    return value


Settings = Annotated[dict[str, Setting], BeforeValidator(_quoted)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Server(_Model):
    """Where a server's programs come from: the wheel, an installation by its pg_config, or source.

    build: the major version that is built from source, with these options of configure and flags.
    """

    source: Literal["wheel"] | None = None
    pg_config: str | None = None
    build: Annotated[int, Field(ge=15, le=18)] | None = None
    configure: tuple[str, ...] = ()
    cflags: str | None = None
    ldflags: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Server:
        if sum(given is not None for given in (self.source, self.pg_config, self.build)) != 1:
            raise ValueError(
                'give one of source = "wheel", pg_config = "/path/to/pg_config", build = 18'
            )
        if self.build is None and {"configure", "cflags", "ldflags"} & self.model_fields_set:
            raise ValueError("configure, cflags and ldflags are for servers with build = 18")
        return self

    @property
    def recipe(self) -> Recipe | None:
        """How it is built, where it is."""
        if self.build is None:
            return None
        usual = Recipe(self.build)
        return Recipe(
            self.build, self.configure or usual.configure, self.cflags or usual.cflags,
            self.ldflags or usual.ldflags,
        )  # fmt: skip


class Variant(_Model):
    """One rung: what a server preloads and sets.

    settings need a restart, runtime is put into force by a reload. capture: what
    wait_event_timing must be seen to do in it. factors: it stands for every combination of these
    levels. beside: a program that runs beside the load.
    """

    name: Name
    title: str = ""
    server: str = "main"
    preload: tuple[str, ...] = ()
    settings: Settings = {}
    runtime: Settings = {}
    capture: Literal["absent", "unhooked", "off", "stats", "trace"] = "absent"
    factors: dict[Name, Annotated[tuple[factorial.Level, ...], Field(min_length=1)]] = {}
    beside: tuple[str, ...] = ()

    @property
    def in_force(self) -> dict[str, Setting]:
        """All that it sets."""
        return {**self.settings, **self.runtime}

    @model_validator(mode="after")
    def _factors_are_used(self) -> Variant:
        used = {str(value) for value in self.in_force.values()}
        for name, levels in self.factors.items():
            if len(levels) > 1 and f"{{{name}}}" not in used:
                raise ValueError(f'no setting is "{{{name}}}", so the factor {name} does nothing')
        return self


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


class Figure(_Model):
    """A number that is counted in every run and shown beside the metrics, never tested.

    query: how much its value grows, a second. log: how many lines of the server's log hold it.
    """

    name: Name
    unit: str
    query: str | None = None
    log: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Figure:
        if (self.query is None) == (self.log is None):
            raise ValueError("give either query or log")
        return self


class Workload(_Model):
    """A load, what of it is measured, and the profile of waits that it must show.

    protocol: how it is played, as the study's where it names none; by several one after the other.
    load: the rate as a share of saturation. oldest: the first PostgreSQL that can run it. metric is
    the one that is tested, `also` are shown beside it. counter: a query whose value must grow with
    the transactions. setup: SQL that the server runs before each run. values: what scripts and SQL
    that end in .j2 are filled in with. activity: what must grow in some variants, and in no other.
    """

    name: Name
    title: str = ""
    protocol: Kinds = ()
    builtin: Literal["select-only", "simple-update", "tpcb-like"] | None = None
    script: str | None = None
    setup: str | None = None
    values: dict[str, int] = {}
    mode: Literal["simple", "extended", "prepared"] = "prepared"
    clients: Clients = 1
    scale: Annotated[int, Field(ge=1, le=21_474)] = 10
    load: Annotated[float, BeforeValidator(share), Field(gt=0, lt=1)] | None = None
    preload: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    settings: Settings = {}
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
    figure: tuple[Figure, ...] = ()
    activity: tuple[Activity, ...] = ()

    @model_validator(mode="after")
    def _one_load(self) -> Workload:
        if self.builtin is not None and self.script is not None:
            raise ValueError("builtin and script are two loads: give one")
        return self

    @property
    def stated(self) -> str:
        """Its name in the study file, whichever of its protocols this is."""
        return self.name.partition(BY)[0]


def placed(script: str, workload: Workload) -> str:
    """Where a script stands among a study's runs: a template is filled in for each workload."""
    if not script.endswith(TEMPLATE):
        return script
    folder, _, name = script.removesuffix(TEMPLATE).rpartition("/")
    return f"{folder}/{workload.name}-{name}".removeprefix("/")


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


class Units(_Model):
    """Trials inside one server: each is a block, its sessions or slices of time draw their arms.

    unit: what an arm is drawn for.
    """

    trials: Annotated[int, Field(ge=2, le=1000)] = 12
    run: WholeSeconds = 10
    warm_up: WholeSeconds = 2
    unit: Literal["transaction", "slice"] = "transaction"


class Protocol(_Model):
    """How runs are laid out. half_width: stop a workload once every interval is so narrow.

    kind: that of the workloads which name none; restart: of rounds. layouts: how many linkings of
    each built server the rounds go through.
    """

    kind: Kind = "rounds"
    rounds: Annotated[int, Field(ge=2, le=1000)]
    run: WholeSeconds
    warm_up: WholeSeconds = 5
    restart: Literal["always", "needed"] = "always"
    half_width: Share | None = None
    layouts: Annotated[int, Field(ge=FEWEST_LAYOUTS, le=100)] | None = None
    duet: Duet = Duet()
    units: Units = Units()


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


class QuickUnits(_Model):
    """What `--quick` changes of trials: six are the fewest that give an interval two ends."""

    trials: Annotated[int, Field(ge=2)] = 6
    run: WholeSeconds = 4
    warm_up: WholeSeconds = 1


class Quick(_Model):
    """What `--quick` changes: six rounds are the fewest that give an interval two ends.

    protocols: by workload. variants: those it plays, or patterns.
    """

    rounds: Annotated[int, Field(ge=2)] = 6
    run: WholeSeconds = 3
    warm_up: WholeSeconds = 1
    duet: QuickDuet = QuickDuet()
    units: QuickUnits = QuickUnits()
    protocols: dict[str, Kinds] = {}
    workloads: tuple[str, ...] | None = None
    #: None: as in [gates]
    dropped_at_most: Share | None = None
    variants: tuple[str, ...] | None = None


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
    #: The family of the study that this is a part of.
    _declared: int | None = PrivateAttr(default=None)

    def the_variant(self, name: str) -> Variant:
        """The variant by name, also by the name of the floor's second run."""
        return next(v for v in self.variant if v.name == name.removesuffix(AGAIN))

    def the_workload(self, name: str) -> Workload:
        return next(w for w in self.workload if w.name == name)

    def compared(self, workload: Workload) -> tuple[Comparison, ...]:
        """The comparisons declared for a workload that its protocol can make, in order."""
        there = self.in_a_block(workload)
        return tuple(
            c
            for c in self.comparison
            if (c.workloads is None or workload.stated in c.workloads)
            and c.arm in there
            and c.base in there
        )

    def over_layouts(self, arm: str, base: str) -> bool:
        """Whether a comparison is of two builds that each round links anew.

        Variants of one server share its linking in a round, so that layout drops out.
        """
        return self.protocol.layouts is not None and self._built(arm, base) == 2

    def half_linked(self, arm: str, base: str) -> bool:
        """Whether only one of two servers could be linked anew: the other has its one layout."""
        return self.protocol.layouts is not None and self._built(arm, base) == 1

    def _built(self, arm: str, base: str) -> int:
        """How many of the two servers of a comparison are built here; none where it is one."""
        a, b = (self.the_variant(name).server for name in (arm, base))
        return 0 if a == b else sum(self.servers[name].build is not None for name in (a, b))

    @property
    def family(self) -> int:
        """How many comparisons Holm's correction is over: those declared, played or not."""
        if self._declared is not None:
            return self._declared
        return sum(len(self.compared(w)) for w in self.workload)

    @property
    def switched(self) -> tuple[str, ...]:
        """The variants that differ in run-time settings only; the floor's is their base, and first.

        One server can hold them all.
        """
        floor = self.the_variant(self.analysis.floor)

        def at_start(v: Variant) -> tuple[object, ...]:
            return v.server, v.preload, sorted(v.settings.items()), v.beside

        others = (v.name for v in self.variant if v != floor and at_start(v) == at_start(floor))
        return (floor.name, *others)

    def in_a_block(self, workload: Workload) -> tuple[str, ...]:
        """What a block of a workload compares: its variants, the floor's twice."""
        in_server = self.kind(workload) == "units"
        names = self.switched if in_server else tuple(v.name for v in self.variant)
        return (*names, self.analysis.floor + AGAIN)

    def kinds(self, workload: Workload) -> tuple[Kind, ...]:
        """The protocols that a workload is played by."""
        return workload.protocol or (self.protocol.kind,)

    def kind(self, workload: Workload) -> Kind:
        """The protocol of a workload in a resolved study, where each has one."""
        return self.kinds(workload)[0]

    def blocks_planned(self, workload: Workload) -> int:
        """The planned units of inference of a workload: rounds, a duet's sets of them, trials."""
        protocol = self.protocol
        planned: dict[Kind, int] = {
            "rounds": protocol.rounds, "duet": protocol.duet.sets, "units": protocol.units.trials
        }  # fmt: skip
        return planned[self.kind(workload)]

    def resolved(self) -> Study:
        """The study with a workload for each protocol it is played by, and what that one tests.

        A duet has no throughput: it tests its own metric, and the other latencies stand beside it;
        units in a server have service times.
        """
        return self.model_copy(
            update={
                "workload": tuple(
                    self._by(kind, w) for w in self.workload for kind in self.kinds(w)
                )
            }
        )

    def _by(self, kind: Kind, workload: Workload) -> Workload:
        several = len(self.kinds(workload)) > 1
        name = f"{workload.name}{BY}{kind}" if several else workload.name
        update: dict[str, Any] = {"name": name, "protocol": (kind,)}
        if kind == "duet":
            tested = self.protocol.duet.metric
            also = tuple(m for m in UNITS if m not in ("tps", tested, *SERVICE))
            update |= {"metric": tested, "also": also}
        elif kind == "units":
            update |= {"metric": SERVICE[0], "also": ("cpu_us", *SERVICE[1:])}
        return workload.model_copy(update=update)

    def load_spec(self, workload: Workload, directory: Path, rate: float | None) -> LoadSpec:
        """What to drive; directory: where the scripts were placed."""
        script = workload.script
        scripts = (Script(directory / placed(script, workload)),) if script else ()
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
        units = self.protocol.units.model_copy(update=quick.units.model_dump())
        changed = {
            "rounds": quick.rounds, "run": quick.run, "warm_up": quick.warm_up, "duet": duet,
            "units": units,
        }  # fmt: skip
        gates = {} if quick.dropped_at_most is None else {"dropped_at_most": quick.dropped_at_most}
        names = [v.name for v in self.variant]
        wanted = ["*"] if quick.variants is None else [*quick.variants, self.analysis.floor]
        played = [n for n in names if any(factorial.matching(one, [n]) for one in wanted)]
        return factorial.kept(self, played).model_copy(
            update={
                "protocol": self.protocol.model_copy(update=changed),
                "gates": self.gates.model_copy(update=gates),
                "workload": tuple(
                    w.model_copy(update={"protocol": quick.protocols.get(w.name, w.protocol)})
                    for w in self.workload
                    if w.name in chosen
                ),
            }
        )

    def without(self, names: Collection[str]) -> Study:
        """The study without some variants; its family stays what it was."""
        left = factorial.kept(self, [v.name for v in self.variant if v.name not in names])
        left._declared = self.family
        return left

    def only(self, names: Sequence[str]) -> Study:
        """The study on these workloads, by their names in the file; its family stays what it was.

        Else whoever runs a few, having seen the others, would be asked for less. Raises UsageError
        for a workload that there is not.
        """
        known = list(dict.fromkeys(w.stated for w in self.workload))
        for name in names:
            if name not in known:
                raise UsageError(f"there is no workload {name!r}{near(name, known)}")
        chosen = self.model_copy(
            update={"workload": tuple(w for w in self.workload if w.stated in names)}
        )
        chosen._declared = self.family
        return chosen
