"""What a study file declares, before its protocols lay it out."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from pgtare.load import LoadSpec, Script
from pgtare.weighing.ladder.study_sections import (
    AGAIN,
    Analysis,
    Comparison,
    Gates,
    ProtocolSection,
    QuickSection,
    Section,
    Server,
    Variant,
    Workload,
    placed,
)


class DeclaredStudy(Section):
    """The sections of a study file; protocols and servers need no more of a study."""

    title: str
    about: str = ""
    servers: dict[str, Server] = Field(default_factory=lambda: {"main": Server(source="wheel")})
    protocol: ProtocolSection
    analysis: Analysis
    gates: Gates = Gates()
    quick: QuickSection = QuickSection()
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

    def protocol_names(self, workload: Workload) -> tuple[str, ...]:
        """The protocols that play a workload."""
        return workload.protocol or (self.protocol.kind,)

    def protocol_name(self, workload: Workload) -> str:
        """The protocol of a workload in a resolved study, if each has one."""
        return self.protocol_names(workload)[0]

    def over_layouts(self, arm: str, base: str) -> bool:
        """Whether a comparison is of two builds that each round links anew.

        Variants of one server share its linking in a round, so that layout drops out.
        """
        return self.protocol.layouts is not None and self._built(arm, base) == 2

    def half_linked(self, arm: str, base: str) -> bool:
        """Whether only one of two servers could be linked anew: the other has its one layout."""
        return self.protocol.layouts is not None and self._built(arm, base) == 1

    def _built(self, arm: str, base: str) -> int:
        """How many of the two servers of a comparison are built here; none if it is one."""
        a, b = (self.the_variant(name).server for name in (arm, base))
        return 0 if a == b else sum(self.servers[name].build is not None for name in (a, b))

    @property
    def switched(self) -> tuple[str, ...]:
        """The variants that differ in run-time settings only; the floor's is their base, and first.

        One server can hold them all.
        """
        floor = self.the_variant(self.analysis.floor)

        def at_start(v: Variant) -> tuple[object, ...]:
            return v.server, v.preload, sorted(v.settings.items()), v.companion

        others = (v.name for v in self.variant if v != floor and at_start(v) == at_start(floor))
        return (floor.name, *others)

    def load_spec(self, workload: Workload, directory: Path, rate: float | None) -> LoadSpec:
        """What to drive; directory: of the scripts."""
        script = workload.script
        scripts = (Script(directory / placed(script, workload)),) if script else ()
        return LoadSpec(
            builtin=workload.builtin or "select-only",
            scripts=scripts,
            protocol=workload.mode,
            clients=workload.clients,
            rate=rate,
        )
