"""The tables of a study file: variants, workloads, protocols, comparisons, gates."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from pgtare.weighing.ladder.activity import Activity
from pgtare.weighing.ladder.field_types import (
    Clients,
    Name,
    SettingValue,
    Share,
    WholeSeconds,
    share,
)

Latency = Literal["latency_mean_us", "latency_p50_us", "latency_p95_us", "latency_p99_us"]
Metric = Literal["tps", "cpu_us"] | Latency
#: Metrics of which more is better; of the others less is.
HIGHER_IS_BETTER = frozenset({"tps"})
_LATENCIES: tuple[Latency, ...] = get_args(Latency)
UNITS: dict[Metric, str] = {"tps": "tx/s", "cpu_us": "µs", **dict.fromkeys(_LATENCIES, "µs")}
AGAIN = " again"  # ends the name of the floor's second run
TEMPLATE = ".j2"  # ends the name of a script that is filled in with the workload's values


def _quoted(value: Any) -> Any:
    for name, inner in value.items() if isinstance(value, dict) else ():
        if isinstance(inner, dict):
            whole = f"{name}.{next(iter(inner), '')}"
            raise ValueError(f'a name with a dot wants quotes, as in "{whole}"')
    return value


Settings = Annotated[dict[str, SettingValue], BeforeValidator(_quoted)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Server(Section):
    """Where a server's programs come from: the wheel, or an installation by its pg_config."""

    source: Literal["wheel"] | None = None
    pg_config: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Server:
        if (self.source is None) == (self.pg_config is None):
            raise ValueError('give one of source = "wheel", pg_config = "/path/to/pg_config"')
        return self


class Variant(Section):
    """One rung: what a server preloads and sets.

    settings need a restart, runtime is put into force by a reload. capture: what wait_event_timing
    must be seen to do in it. companion: a program that runs during the load.
    """

    name: Name
    title: str = ""
    server: str = "main"
    preload: tuple[str, ...] = ()
    settings: Settings = {}
    runtime: Settings = {}
    capture: Literal["absent", "unhooked", "off", "stats", "trace"] = "absent"
    companion: tuple[str, ...] = ()

    @property
    def in_force(self) -> dict[str, SettingValue]:
        """All that it sets."""
        return {**self.settings, **self.runtime}


class Expected(Section):
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


class Figure(Section):
    """A number that is counted in every run and shown next to the metrics, never tested.

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


class Workload(Section):
    """A load, what of it is measured, and the profile of waits that it must show.

    load: the rate as a share of saturation. oldest: the first PostgreSQL that can run it. metric is
    the one that is tested, `also` are shown next to it. counter: a query whose value must grow with
    the transactions. setup: SQL that the server runs before each run. values: what scripts and SQL
    that end in .j2 are filled in with. activity: what must grow in some variants, and in no other.
    """

    name: Name
    title: str = ""
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
    counter: str | None = None
    idle_at_least: Share | None = None
    idle_at_most: Share | None = None
    profile: tuple[Expected, ...] = ()
    figure: tuple[Figure, ...] = ()
    activity: tuple[Activity, ...] = ()

    @property
    def is_writing(self) -> bool:
        """Whether its load writes, as far as the study file shows."""
        return self.writes or self.builtin in ("simple-update", "tpcb-like")

    @model_validator(mode="after")
    def _one_load(self) -> Workload:
        if self.builtin is not None and self.script is not None:
            raise ValueError("builtin and script are two loads: give one")
        if self.load is not None and self.metric == "tps":
            raise ValueError(
                "with a load the rate is given, so that tps tests nothing: give metric = "
                '"latency_p50_us" or "cpu_us"'
            )
        return self


def placed(script: str, workload: Workload) -> str:
    """Where a script is among a study's runs: a template is filled in for each workload."""
    if not script.endswith(TEMPLATE):
        return script
    folder, _, name = script.removesuffix(TEMPLATE).rpartition("/")
    return f"{folder}/{workload.name}-{name}".removeprefix("/")


class Comparison(Section):
    """arm against base; on these workloads, or on all."""

    arm: str
    base: str
    workloads: tuple[str, ...] | None = None


class ProtocolSection(Section):
    """How runs are laid out."""

    rounds: Annotated[int, Field(ge=2, le=1000)]
    run: WholeSeconds
    warm_up: WholeSeconds = 5


class Analysis(Section):
    """Level, margin, and the variant that is run twice a round for the floor."""

    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    margin: Share = 0.005
    floor: str


class Gates(Section):
    """Bounds a run must keep; the run that does not is dropped, and its block with it."""

    steal_at_most: Share = 0.05
    other_load_at_most: Share = 0.05
    clock_step_ms: float = 50.0
    dropped_at_most: Share = 0.25


class QuickSection(Section):
    """What `--quick` changes: six rounds are the fewest that give an interval two ends."""

    rounds: Annotated[int, Field(ge=2)] = 6
    run: WholeSeconds = 3
    warm_up: WholeSeconds = 1
    workloads: tuple[str, ...] | None = None
    #: None: as in [gates]
    dropped_at_most: Share | None = None
