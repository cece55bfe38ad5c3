"""A study, declared beforehand in a file, and what follows for its blocks, loads and family."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, PrivateAttr

from pgtare.errors import UsageError
from pgtare.instruments.catalogue import near
from pgtare.ladder import factorial
from pgtare.ladder.kinds import BY, Kind
from pgtare.ladder.sections import (
    AGAIN,
    SERVICE,
    UNITS,
    Analysis,
    Comparison,
    Gates,
    Protocol,
    Quick,
    Server,
    Table,
    Variant,
    Workload,
    placed,
)
from pgtare.load import LoadSpec, Script


class Study(Table):
    """A study file."""

    title: str
    about: str = ""
    servers: dict[str, Server] = Field(default_factory=lambda: {"main": Server(source="wheel")})
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
