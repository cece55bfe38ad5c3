"""What a study file declares, before its protocols lay it out."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from pgtare.postgres.load import LoadSpec, Script
from pgtare.weighing.ladder.study_sections import (
    AGAIN,
    Analysis,
    Comparison,
    Gates,
    ProtocolName,
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

    def the_variant(self, name: str) -> Variant:
        """The variant by name, also by the name of the floor's second run."""
        return next(v for v in self.variant if v.name == name.removesuffix(AGAIN))

    def the_workload(self, name: str) -> Workload:
        return next(w for w in self.workload if w.name == name)

    def protocol_name(self, workload: Workload) -> ProtocolName:
        """The protocol that plays a workload."""
        return workload.protocol or self.protocol.kind

    @property
    def members(self) -> tuple[str, ...]:
        """The variants that a block compares, the floor's a second time at the end."""
        return (*(v.name for v in self.variant), self.analysis.floor + AGAIN)

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
            scale=workload.scale,
        )
