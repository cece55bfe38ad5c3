"""A study, declared beforehand in a file, and what follows for its loads and its family."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from pydantic import Field, PrivateAttr

from pgtare.errors import UsageError
from pgtare.postgres.load import LoadSpec, Script
from pgtare.weighing.instruments.catalogue import near
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


class Study(Section):
    """The sections of a study file."""

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
    #: The family of the study that this is a part of.
    _declared: int | None = PrivateAttr(default=None)

    def the_variant(self, name: str) -> Variant:
        """The variant by name, also by the name of the floor's second run."""
        return next(v for v in self.variant if v.name == name.removesuffix(AGAIN))

    def the_workload(self, name: str) -> Workload:
        return next(w for w in self.workload if w.name == name)

    @property
    def members(self) -> tuple[str, ...]:
        """The variants that a round compares, the floor's a second time at the end."""
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

    def compared(self, workload: Workload) -> tuple[Comparison, ...]:
        """The comparisons declared for a workload, in order."""
        return tuple(
            c for c in self.comparison if c.workloads is None or workload.name in c.workloads
        )

    @property
    def family(self) -> int:
        """How many comparisons Holm's correction is over: those declared, played or not."""
        if self._declared is not None:
            return self._declared
        return sum(len(self.compared(w)) for w in self.workload)

    def made_quick(self) -> Study:
        """The study as `--quick` runs it."""
        quick = self.quick
        chosen = set(quick.workloads or [w.name for w in self.workload])
        gates = {} if quick.dropped_at_most is None else {"dropped_at_most": quick.dropped_at_most}
        return self.model_copy(
            update={
                "protocol": self.protocol.model_copy(
                    update={"rounds": quick.rounds, "run": quick.run, "warm_up": quick.warm_up}
                ),
                "gates": self.gates.model_copy(update=gates),
                "workload": tuple(w for w in self.workload if w.name in chosen),
            }
        )

    def without(self, names: Collection[str]) -> Study:
        """The study without some variants; its family stays what it was."""
        return self._part(
            variant=tuple(v for v in self.variant if v.name not in names),
            comparison=tuple(c for c in self.comparison if not {c.arm, c.base} & {*names}),
        )

    def only(self, names: Sequence[str]) -> Study:
        """The study on these workloads; its family stays what it was.

        Otherwise, a user who has seen the others and runs a few would need less evidence. Raises
        UsageError for a workload that there is not.
        """
        known = [w.name for w in self.workload]
        for name in names:
            if name not in known:
                raise UsageError(f"there is no workload {name!r}{near(name, known)}")
        return self._part(workload=tuple(w for w in self.workload if w.name in names))

    def _part(self, **left: object) -> Study:
        part = self.model_copy(update=left)
        part._declared = self.family
        return part
