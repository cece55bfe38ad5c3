"""A study, declared beforehand in a file, and what follows for its blocks, loads and family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import PrivateAttr

from pgtare.errors import UsageError
from pgtare.weighing.instruments.catalogue import near
from pgtare.weighing.ladder.blocks import Gathered
from pgtare.weighing.ladder.declared_study import DeclaredStudy
from pgtare.weighing.ladder.protocol import StudyProtocol
from pgtare.weighing.ladder.protocol_registry import PROTOCOLS
from pgtare.weighing.ladder.records import Run
from pgtare.weighing.ladder.study_sections import Comparison, Workload


class Study(DeclaredStudy):
    """A study file, laid out by its protocols."""

    #: The family of the study that this is a part of.
    _declared: int | None = PrivateAttr(default=None)

    def played_by(self, workload: Workload) -> StudyProtocol:
        """The protocol that plays a workload."""
        return PROTOCOLS[self.protocol_name(workload)]

    def blocks_planned(self, workload: Workload) -> int:
        """The planned units of inference of a workload: rounds, a duet's sets of them."""
        return self.played_by(workload).blocks(self)

    def gathered(self, workload: Workload, runs: Mapping[str, Run]) -> Gathered:
        """The blocks of a workload that are done. runs: by id of their steps."""
        own = [
            r for r in runs.values() if r.step.kind == "run" and r.step.workload == workload.name
        ]
        return self.played_by(workload).gather(self, workload, own)

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
                "protocol": self.protocol.made_quick(quick),
                "gates": self.gates.model_copy(update=gates),
                "workload": tuple(w for w in self.workload if w.name in chosen),
            }
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
        chosen = tuple(w for w in self.workload if w.name in names)
        part = self.model_copy(update={"workload": chosen})
        part._declared = self.family
        return part
