"""The protocols of the ladder, by the name that study files and results give them."""

from __future__ import annotations

from pgtare.weighing.ladder.duet_rounds import DuetRounds
from pgtare.weighing.ladder.protocol import StudyProtocol
from pgtare.weighing.ladder.rounds import Rounds
from pgtare.weighing.ladder.unit_trials import UnitTrials

#: A workload's proof is a whole run, whichever protocol plays the workload.
WHOLE_RUNS = Rounds()

PROTOCOLS: dict[str, StudyProtocol] = {
    protocol.name: protocol
    for protocol in (
        WHOLE_RUNS,
        DuetRounds(),
        UnitTrials(),
    )
}
