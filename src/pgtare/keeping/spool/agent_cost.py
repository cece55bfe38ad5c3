"""What an agent costs, by its own figures in a spool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pgtare.errors import PgtareError
from pgtare.keeping.spool import reader

#: One agent at a time writes a spool, so the figures of two agents never overlap.
_SQL = """
SELECT server, kind, sum(value) AS seconds, sum(covered_ns) / 1e9 AS covered_s
FROM agent WHERE unit = 's' AND (kind = 'cpu' OR starts_with(kind, 'look_'))
GROUP BY server, kind ORDER BY server, kind
"""
_SERVERS = """
SELECT server, arg_max(system_identifier, ts), arg_max(standby, ts)
FROM servers WHERE system_identifier IS NOT NULL GROUP BY server
"""


@dataclass(frozen=True)
class AgentCost:
    """Cores that an agent takes.

    process: its own process, exporter included. looks: of each server, the time of its
    transactions there, which has the way there and back in it. covered_s: time that the figures of
    the process are of. notes: files that were left out.
    """

    process: float
    looks: dict[str, float]
    covered_s: float
    notes: tuple[str, ...]
    identities: dict[str, tuple[str, bool]]


def agent_cost(spool: Path) -> AgentCost:
    """What the spool's agents cost, over all the time for which it has their figures.

    Raises as `reader.query`, and PgtareError if it has none.
    """
    answer = reader.query(spool, _SQL)
    process = longest = 0.0
    seconds: dict[str, float] = {}
    covered: dict[str, float] = {}
    for server, kind, spent_s, covered_s in answer.rows:
        if kind == "cpu" and covered_s:
            process, longest = float(spent_s) / float(covered_s), float(covered_s)
        elif server:
            # a kind of look that came later covers less
            seconds[server] = seconds.get(server, 0.0) + float(spent_s)
            covered[server] = max(covered.get(server, 0.0), float(covered_s))
    if not longest:
        raise PgtareError(
            f"{spool} has no figures of its agent: they are kept for seven days, and an agent "
            "writes them every ten seconds"
        )
    looks = {server: seconds[server] / covered[server] for server in seconds if covered[server]}
    identities = {
        server: (str(identifier), bool(standby))
        for server, identifier, standby in reader.query(spool, _SERVERS).rows
    }
    return AgentCost(process, looks, longest, tuple(answer.notes), identities)
