"""The protocols of the ladder, by the name that study files and results give them."""

from __future__ import annotations

from pgtare.weighing.ladder.protocol import StudyProtocol
from pgtare.weighing.ladder.protocols.duet_rounds import DuetRounds
from pgtare.weighing.ladder.protocols.rounds import Rounds

#: A workload's proof is a whole run, whichever protocol plays the workload.
WHOLE_RUNS = Rounds()
PROTOCOLS: dict[str, StudyProtocol] = {one.name: one for one in (WHOLE_RUNS, DuetRounds())}
