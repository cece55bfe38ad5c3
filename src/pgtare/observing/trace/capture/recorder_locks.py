"""Which recorders are answerable for a session: the last of them gives it back.

Each holds an advisory lock for every session that it had traced, which `pg_locks` shows to the
others, in whatever database. The server drops it with the recorder's session, however that ends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from pgtare.observing.trace.capture.server import Server
from pgtare.postgres import pooler

#: The first half of our locks' keys ("pgtr"), and of those of recorders of waits alone, which ask
#: another module for them; the second is the process.
_CLASS, _OF_WAITS = 0x70677472, 0x70677473

# Anybody may take such a lock. Only that of a role which could record the session counts: else any
# role could keep the sessions of others traced, as nobody would give them back.
_OWNERS = """
SELECT DISTINCT l.objid::bigint FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_stat_activity s ON s.pid = l.objid::bigint
WHERE l.locktype = 'advisory' AND l.granted AND l.classid = %s::bigint::oid AND l.objsubid = 2
AND l.objid::bigint = ANY(%s::bigint[]) AND (pg_has_role(a.usesysid, 'pg_read_all_stats', 'USAGE')
  OR s.usesysid IS NOT NULL AND pg_has_role(a.usesysid, s.usesysid, 'USAGE'))
AND l.pid <> ALL(%s::int[])
"""
_GIVE_BACK = """
SELECT {setter}(pid, NULL::{level}) FROM pg_stat_activity WHERE (pid, backend_start) IN
(SELECT * FROM unnest(%s::int[], %s::timestamptz[])) AND backend_type = 'client backend'
"""

#: Sessions of others, to a role without pg_read_all_stats: it sees no more of them than this.
_HIDDEN = "SELECT pid FROM pg_stat_activity WHERE pid = ANY(%s::int[]) AND backend_start IS NULL"


def _class_of(server: Server) -> int:
    return _CLASS if server.has_calls else _OF_WAITS


def _holds(server: Server) -> bool:
    """Whether locks are of use: in a pool's session they would outlast us.

    Recording waits alone goes through a pool, and then knows of no other recorder.
    """
    return server.has_calls or not server.pooled


def own(server: Server, pid: int) -> None:
    """Be answerable for a session, as others may be."""
    if _holds(server):
        query = "SELECT pg_try_advisory_lock_shared(%s::int, %s::int)"
        server.rows(query, _class_of(server), pid)


def let_go(server: Server, pid: int) -> None:
    """No longer be answerable for a session."""
    if _holds(server):
        query = "SELECT pg_advisory_unlock_shared(%s::int, %s::int)"
        server.rows(query, _class_of(server), pid)


def owned(server: Server, pids: Collection[int], apart_from: Sequence[int] = ()) -> set[int]:
    """For which of these sessions a recorder is answerable, apart from those recorders."""
    if not pids:
        return set()
    return {pid for (pid,) in server.rows(_OWNERS, _class_of(server), list(pids), list(apart_from))}


def give_back(
    server: Server, sessions: Mapping[int, datetime | str], recorder: int | None = None
) -> list[int]:
    """Give sessions back to their settings, but for those that other recorders still trace.

    Returns those that could not be, as the role does not see any more which sessions they are.

    sessions: when each process began its session. recorder: the process that serves a recorder
    which is dead, if we do it on its behalf.
    """
    own_pid = pooler.backend_pid(server.conn)
    for pid in sessions:  # first: of two that end together, one at least sees the other gone
        if recorder is None:
            let_go(server, pid)
    apart_from = [own_pid] if recorder is None else [own_pid, recorder]
    left = sorted(set(sessions) - owned(server, sessions, apart_from))
    # a session that has ended would only cause a warning; another with its number is not ours
    server.rows(_GIVE_BACK, left, [sessions[pid] for pid in left])
    return hidden(server, left)


def hidden(server: Server, pids: Collection[int]) -> list[int]:
    """Processes that there are, of which we may not see any more whose they are."""
    return [pid for (pid,) in server.rows(_HIDDEN, list(pids))] if pids else []
