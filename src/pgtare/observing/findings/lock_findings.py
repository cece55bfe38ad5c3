"""Findings of locks: who holds them, and what waits behind whom."""

from __future__ import annotations

import re
from typing import Any

from pgtare.kit import numbers
from pgtare.observing.findings import remedies
from pgtare.observing.findings.causes import Cause
from pgtare.observing.findings.finding_parts import (
    named,
    of_cause,
    share_line,
    short,
    spent,
    table_of,
    who,
)
from pgtare.observing.findings.model import ACTIVE, INFORMATION, Finding, Remedy, Who
from pgtare.observing.findings.observation import SampledSession, moment
from pgtare.observing.findings.partition import Partition, is_unknown
from pgtare.observing.findings.read import ANY_ROWS, NOTIFY
from pgtare.observing.findings.roots import behind

#: A victim that waits so long shows that it is no queue of short waits, s.
_LONG_WAIT_S = 5.0
#: More sessions than these stand by for no leader.
_MOST_CANDIDATES = 8
_DETACHES = re.compile(r"\bDETACH\s+PARTITION\b", re.IGNORECASE)
_LOCK_TIMEOUT = Remedy(
    command="SET lock_timeout = '2s';",
    does="before each ALTER TABLE, in its session: it gives up instead of holding up all others, "
    "and is tried again later",
)
_SAME_ORDER = Remedy(
    does="have all transactions take their locks in the same order (rows by SELECT … ORDER BY … "
    "FOR UPDATE), and clients retry what fails with SQLSTATE 40P01"
)
_THE_LAST = Remedy(
    does="end the others that hold it, too, if they do not end by themselves: it is free when the "
    "last of them has ended"
)
_LIST_PREPARED = Remedy(
    command="SELECT gid, prepared, owner, database FROM pg_prepared_xacts ORDER BY prepared;",
    does="lists them, the oldest first: which of them it is was not seen",
)
_ASK = Remedy(
    command="SELECT pid, pg_blocking_pids(pid), wait_event, left(query, 60) FROM pg_stat_activity "
    "WHERE wait_event_type = 'Lock';",
    does="names whom each of them waits for; the doctor does, too, if it looks for longer "
    "(--interval)",
)


def lock(cause: Cause, whole: Partition) -> Finding:
    """A session, or a prepared transaction, that holds up others."""
    if cause.ring:
        return _ring(cause, whole)
    if cause.prepared is not None:
        return _prepared(cause, whole)
    root = cause.root
    object_ = _object(cause, whole) or "what others wait for"
    if root is None and any(path.root == 0 for path in cause.paths.values()):
        title = f"a prepared transaction holds {object_}"
        return _finding(cause, whole, title, [], [_LIST_PREPARED])
    if root is None:
        title = f"a session that could not be looked at holds {object_}"
        return _finding(cause, whole, title, [], [])
    builds = _waiting_for_the_end(cause)
    if builds:
        return _older_transaction(cause, whole, root, builds)
    if _is_election(cause, root):
        return _election(cause, whole, root)
    title = f"{named(root)} {_does(root)} and holds {object_}"
    evidence = [_state(root)]
    others = cause.others
    if others:
        title += ", and so do others"
        listed = ", ".join(map(named, others[:3])) + (" …" if len(others) > 3 else "")
        held = numbers.counted(len(others), "other session holds", "other sessions hold")
        evidence.append(f"{held} it as well: {listed}")
    fixes: list[Remedy] = []
    if cause.gate is not None:
        gate = cause.gate
        said = f" with «{short(gate.text)}»" if gate.text else ""
        it = "them" if others else "it"
        title += f"; {named(gate)} waits for {it}{said}, and others behind that"
        evidence.append(f"{behind(gate.pid, cause.paths):,} wait behind {named(gate)}")
        if remedies.may_be_ended(gate):
            fixes.append(
                remedies.cancel(gate, "lets those go on that wait behind it, at the least cost")
            )
    fixes += remedies.end(root)
    if others:
        fixes.append(_THE_LAST)
    if root.state.startswith("idle in transaction"):
        fixes += remedies.not_again(root)
    elif root.state == "idle":
        fixes.insert(
            0,
            Remedy(
                does="call pg_advisory_unlock() with the lock's key in its own session, if the "
                "application still knows it: the lock is the session's, so it outlasts "
                "transactions"
            ),
        )
    if cause.gate is not None:
        ended = remedies.may_be_ended(cause.gate)
        fixes += [_LOCK_TIMEOUT] if ended else remedies.end(cause.gate)
    return _finding(cause, whole, title, evidence, fixes)


def _object(cause: Cause, whole: Partition) -> str:
    """What is locked. A row that was changed meanwhile is waited for without its table's name."""
    if cause.object != ANY_ROWS:
        return cause.object
    named_rows = [name for name in cause.objects.most(3) if name != ANY_ROWS]
    statements = (cause.direct or cause.statements).most(3)
    texts = (whole.observation.text(statement) for statement in statements)
    named_rows += [f"{ANY_ROWS} of {table}" for table in map(table_of, texts) if table]
    named_rows += [name for name in cause.objects_behind.most(3) if name != ANY_ROWS]
    return named_rows[0] if named_rows else ANY_ROWS


def _does(root: SampledSession) -> str:
    if root.state == "idle in transaction (aborted)":
        return "is idle in transaction, which failed and was not rolled back,"
    if root.state.startswith("idle"):
        return f"is {root.state}"
    if root.type == "Client":
        return "waits for its client in the middle of a statement"
    if root.backend_type == "startup":
        return "applies what the primary did, waits for queries of this standby itself,"
    if root.backend_type != "client backend":
        unnamed = not (root.application or root.role)  # then it is called so already
        article = "an" if root.backend_type[:1] in "aeiou" else "a"
        return "is at work" if unnamed else f"is {article} {root.backend_type} at work"
    return f"runs «{short(root.text)}»" if root.text else "runs a statement"


def _state(root: SampledSession) -> str:
    parts = [f"role {root.role}, database {root.database}"] if root.role else []
    if root.client:
        parts.append(f"client {root.client}")
    if root.state != "active" and root.state_age_s is not None:
        parts.append(f"{root.state} for {spent(root.state_age_s)}")
    elif root.state == "active":
        parts.append(f"its statement runs for {spent(root.query_age_s or 0.0)} ({root.label})")
    if root.xact_age_s is not None:
        parts.append(f"its transaction is open for {spent(root.xact_age_s)}")
    if root.text and root.state != "active":
        parts.append(f"last statement «{short(root.text)}»")
    return ", ".join(parts)


def _prepared(cause: Cause, whole: Partition) -> Finding:
    held = cause.prepared
    assert held is not None
    age = "" if held.prepared_age_s is None else f", prepared {spent(held.prepared_age_s)} ago"
    gid = remedies.literal(held.gid or "")
    title = f"the prepared transaction {gid} holds {_object(cause, whole) or 'locks'}"
    return _finding(
        cause,
        whole,
        title,
        [f"prepared transaction {gid} of role {held.owner} in database {held.database}{age}"],
        [remedies.rollback_prepared(held.gid or "", held.database, held.owner)],
        root=Who(
            gid=held.gid, role=held.owner or "", database=held.database or "", state="prepared"
        ),
    )


def _ring(cause: Cause, whole: Partition) -> Finding:
    members = {pid for path in cause.paths.values() if path.ring for pid in path.between}
    inside = [one for one in cause.waiters.values() if one.pid in members]
    sessions = sorted(inside, key=lambda one: one.xact_age_s or 0.0)
    title = f"sessions wait for each other in a ring: {', '.join(map(named, sessions[:3]))}"
    ended = list(filter(remedies.may_be_ended, sessions))
    fixes = [remedies.cancel(ended[0], "cancels the youngest of them")] if ended else []
    fixes.append(_SAME_ORDER)
    return _finding(cause, whole, title, ["a deadlock in the making"], fixes)


def _waiting_for_the_end(cause: Cause) -> list[SampledSession]:
    """Those that wait until the root's transaction has ended, if all do that wait for it.

    An index that is built CONCURRENTLY waits so for all transactions that may miss it.
    """
    direct = [cause.waiters[pid] for pid, path in cause.paths.items() if not path.between]
    return direct if all(one.label == "Lock/virtualxid" for one in direct) else []


def _older_transaction(
    cause: Cause, whole: Partition, root: SampledSession, builds: list[SampledSession]
) -> Finding:
    build = builds[0]
    text = build.text or whole.observation.text(build.statement)
    with_ = f" with «{short(text)}»" if text else ""
    others = len(cause.paths) > len(builds)
    title = (
        f"{named(build)} waits{with_} until the transaction of {named(root)} has ended, which "
        f"{_does(root).rstrip(',')}" + ("; others wait behind that" if others else "")
    )
    left = (
        "gives the build up, then drop the index that it leaves INVALID (DROP INDEX CONCURRENTLY)"
    )
    if _DETACHES.search(text):
        left = "gives it up, then finish it later with ALTER TABLE … DETACH PARTITION … FINALIZE"
    fixes = [remedies.cancel(build, left), *remedies.end(root)]
    if not others:
        finish = "let the transaction finish: nobody who reads or writes waits for it"
        fixes.insert(0, Remedy(does=finish))
    return _finding(
        cause,
        whole,
        title,
        [_state(root)],
        fixes,
        **({} if others else {"class_": ACTIVE, "level": "warning"}),
        why="what is done CONCURRENTLY waits for all transactions that began before it, and might "
        "use the table as it was",
    )


def _is_election(cause: Cause, root: SampledSession) -> bool:
    """Whether sessions stand by for a leader: of one role and application, for an advisory lock.

    They are few, and do nothing else in their transactions: what does work waits for its turn.
    """
    sessions = cause.waiters.values()
    return (
        set(cause.events) == {"Lock/advisory"}
        and cause.gate is None
        and len(sessions) <= _MOST_CANDIDATES
        and all(one.is_whole_transaction for one in sessions)
        and all((one.role, one.application) == (root.role, root.application) for one in sessions)
        and all((one.query_age_s or 0.0) > (root.xact_age_s or 0.0) for one in sessions)
    )


def _election(cause: Cause, whole: Partition, root: SampledSession) -> Finding:
    return _finding(
        cause,
        whole,
        f"sessions of {root.application or root.role} stand by for the one that holds "
        f"{cause.object or 'an advisory lock'}, {named(root)}",
        [_state(root)],
        [
            Remedy(
                does="none if this elects a leader; sessions that try pg_try_advisory_lock() now "
                "and then would occupy no connection that waits"
            )
        ],
        class_=INFORMATION,
        level="info",
        why="holder and waiters are of one role and application, and none of them ever got the "
        "lock: so leaders are elected, by design",
        sure="likely",
    )


def _finding(
    cause: Cause,
    whole: Partition,
    title: str,
    evidence: list[str],
    fixes: list[Remedy],
    **more: Any,
) -> Finding:
    """A finding of a lock; `more` adds to its fields, or replaces them."""
    outage = whole.is_large(cause) and cause.longest_wait_s >= _LONG_WAIT_S
    victims = sorted(cause.waits, key=lambda pid: -cause.waits[pid])
    seen = [
        f"{numbers.counted(max(cause.most_waiters, 1), 'session waits', 'sessions wait')} at once "
        f"({', '.join(cause.events.most(3))}), the longest for {spent(cause.longest_wait_s)}",
        *evidence,
        share_line(whole.share(cause), whole.aas(cause)),
    ]
    texts = [whole.observation.text(statement) for statement in cause.statements.most(2)]
    seen += [f"waiting: «{short(text)}»" for text in texts if text]
    fields: dict[str, Any] = {
        "root": who(cause.root),
        "why": "what waits for a lock goes on when its holder's transaction ends, not before",
        "sure": "certain",
    }
    return of_cause(
        cause,
        whole,
        outage=outage,
        since=moment(cause.since),
        gate=who(cause.gate),
        object=_object(cause, whole) or None,
        victims=victims,
        title=title,
        evidence=seen,
        remedy=fixes,
        because="the server named whom each session waits for",
        figures={"longest_wait_s": cause.longest_wait_s, "sessions": float(cause.most_waiters)},
        **fields | more,
    )


def hot_lock(cause: Cause, whole: Partition) -> Finding:
    """A lock that many take one after the other, and nobody holds for long."""
    object_ = _object(cause, whole)
    statement = next(
        (text for key in cause.statements.most(3) if (text := whole.observation.text(key))), ""
    )
    # a server that answers slowly may not have been asked yet: that says nothing of the holder
    long = cause.longest_wait_s >= _LONG_WAIT_S
    unseen = long and is_unknown(cause) and not cause.changes_hands
    what = object_ or f"one lock ({cause.event})"
    said = f" in «{short(statement)}»" if statement else ""
    title = f"sessions queue for {what}{said}: each holds it for a moment only"
    if object_ == NOTIFY:
        title = "commits with NOTIFY wait for each other: the queue of notifications has one lock"
        why = (
            "a transaction that notifies takes the lock before it commits and keeps it until its "
            "commit is on disk: such commits happen one after the other, in the whole server"
        )
        fixes = [
            Remedy(
                does="send fewer notifications (NOTIFY), or send them in short transactions of "
                "their own, with synchronous_commit = off where they may be lost"
            )
        ]
    elif cause.event == "Lock/extend":
        why = "one session at a time makes a table or an index longer, while others wait"
        fixes = [
            Remedy(
                does="let fewer sessions load into one table at once, or into partitions of it, "
                "with COPY or many rows a statement; PostgreSQL 16 and later add many pages at "
                "a time"
            )
        ]
    elif unseen:
        title = f"sessions wait for {what}{said}: who holds it was not seen"
        why = "what waits for a lock goes on when its holder's transaction ends, not before"
        fixes = [_ASK]
    else:
        why = (
            "transactions that change the same row, or take the same lock, happen one after the "
            "other, however many sessions there are"
        )
        fixes = [
            Remedy(
                does="make the transactions that take it shorter: change the row that all share as "
                "the last statement before COMMIT; or spread it over several rows"
            )
        ]
    return of_cause(
        cause,
        whole,
        outage=whole.is_large(cause) and cause.is_outage,
        since=moment(cause.since if unseen else cause.first_at),
        object=object_ or None,
        victims=sorted(cause.waits),
        title=title,
        evidence=[
            f"{', '.join(cause.events.most(3))}: {numbers.counted(len(cause.waits), 'session')} "
            + (
                f"seen waiting, the longest for {spent(cause.longest_wait_s)}"
                if unseen
                else "seen waiting, none of their holders for long"
            ),
            share_line(whole.share(cause), whole.aas(cause)),
        ],
        why=why,
        remedy=fixes,
        sure="likely",
        because="they wait for one thing, and the server was not asked in time who holds it"
        if unseen
        else "in each sample another session held it",
        figures={"sessions": float(len(cause.waits))},
    )
