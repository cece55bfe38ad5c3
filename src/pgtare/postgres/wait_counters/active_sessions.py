"""Average active sessions: what they are, for counters, for rows of waits, and for samples.

Sessions are active while they work: they wait for something other than work to do (what is not
idle), or they are on a processor or ready for one. Their average over a stretch of time is the time
that they spent so, divided by the time that passed. Client sessions and their workers count;
PostgreSQL's own processes (`backend_types.BACKGROUND`) are shown apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pgtare.postgres.wait_counters.model import Event

#: The name of time that is no wait, in rows of waits.
CPU_TYPE, CPU_EVENT = "CPU", "Running"

#: Which rows of waits are active time, and those of all processes, the server's own among them.
ACTIVE_ROWS_SQL = "NOT idle AND NOT background"
ACTIVE_ROWS_OF_ALL_SQL = "NOT idle"
#: The average of one server, from its active time and the time in which it was watched.
AVERAGE_SQL = "CAST(busy.busy_ns AS DOUBLE) / CAST(watched.watched_ns AS DOUBLE)"
#: Which sessions of pg_stat_activity are active in a sample, if the server's own are left out.
ACTIVE_SAMPLE_SQL = "state = 'active' AND wait_event_type IS DISTINCT FROM 'Activity'"


@dataclass(frozen=True)
class ActiveSessions:
    """What processes at work did in `seconds`, as averages.

    waited_ms: by event, idle ones too. captured_ms: all of the time of these processes, which the
    waits are parts of; None if that is not known, or not of all. sampled_on_cpu: sessions on a
    processor by samples, which count if captured_ms is None.
    """

    seconds: float
    waited_ms: Mapping[Event, float]
    captured_ms: float | None = None
    sampled_on_cpu: float | None = None

    def average(self, ms: float) -> float:
        """Sessions on average, from the time that they spent."""
        return ms / (1000 * self.seconds)

    @property
    def waiting(self) -> float:
        """Sessions that waited for something other than work."""
        return self.average(sum(ms for event, ms in self.waited_ms.items() if not event.idle))

    @property
    def idle(self) -> float:
        """Sessions that waited for something to do."""
        return self.average(sum(ms for event, ms in self.waited_ms.items() if event.idle))

    @property
    def sessions(self) -> float | None:
        """All of them; None: not known."""
        return None if self.captured_ms is None else self.average(self.captured_ms)

    @property
    def on_cpu(self) -> float | None:
        """Those that waited for nothing: on a processor, or ready for one; None: not known."""
        if self.sessions is None:
            return self.sampled_on_cpu
        # a wait that ended but has not been counted yet can make its event seem shorter
        return max(0.0, self.sessions - self.idle - self.waiting)

    @property
    def active(self) -> float:
        """Average active sessions; those that waited alone if on_cpu is not known."""
        return self.waiting + (self.on_cpu or 0.0)
