"""Findings of limits that come near: connections, slots, ages, locks, notifications."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pgtare.kit import numbers
from pgtare.observing.findings import remedies
from pgtare.observing.findings.finding_parts import named, of_limit, spent, who
from pgtare.observing.findings.model import Finding, Remedy
from pgtare.observing.findings.observation import (
    SampledSession,
    ServerCounters,
    ServerState,
    SessionsSample,
    Slot,
)
from pgtare.observing.findings.server_findings import (
    held_by,
    oldest_holder,
    session_of_process,
    where,
)

#: Of all connections that ordinary roles may have.
_MANY, _ALL = 0.85, 0.97
_NO_ROLE = "sessions without a role"
#: A slot that keeps so much, where nothing limits it, is worth telling; or of its limit so much.
_KEPT_BYTES, _KEPT_SHARE = 4 << 30, 0.5
#: Why a slot was invalidated: before version 16 always since WAL was removed.
_IDLE = "idle_timeout"
_INVALIDATED = {
    "wal_removed": "has lost WAL that its consumer still needs",
    "rows_removed": "was invalidated: rows that it needs were removed",
    "wal_level_insufficient": "was invalidated: wal_level of the primary is too low for it",
    "conflict": "was invalidated: rows that it needs were removed, or wal_level of the primary is "
    "too low for it",
    _IDLE: "was given up: nobody read it for idle_replication_slot_timeout",
}
#: What VACUUM may do before it pauses, as servers have it, and as much as can be set.
_COST_LIMIT, _MOST_COST_LIMIT = 200.0, 10_000.0
#: Transaction numbers end here; autovacuum begins at autovacuum_freeze_max_age.
_LAST_XID = 2_000_000_000
_PAST_FREEZE, _NEARLY_LAST = 1.05, 0.9 * _LAST_XID
_MULTIXACT_FREEZE = "autovacuum_multixact_freeze_max_age"
#: Of the queue of notifications; the server warns from a half on.
_NOTIFY_LONG, _NOTIFY_FULL = 0.5, 0.9
#: A transaction that has been open for less holds up nothing that takes so long to fill, s.
_OLD_S = 60.0
#: Of the lock table. Beyond its size it borrows memory, of which there is little.
_LOCKS_MANY, _LOCKS_FULL = 0.75, 1.0
#: Processes besides client sessions that have places in it. From 18 on autovacuum has slots, and
#: its workers are as many of them as were allowed.
_WITH_LOCKS = ("max_worker_processes", "max_wal_senders")
_AUTOVACUUM = ("autovacuum_worker_slots", "autovacuum_max_workers")


def check(state: ServerState, samples: Sequence[SessionsSample] = ()) -> Iterator[Finding]:
    """All limits that are reached, or come near. samples: what sessions did."""
    # rows are frozen by the primary alone
    frozen = () if state.standby else (_transaction_numbers(state, samples), _multixacts(state))
    made = (
        _connections(state),
        *(_slot(slot, state) for slot in state.slots),
        *frozen,
        _notifications(state),
        _lock_table(state),
    )
    yield from filter(None, made)


def has_to_do_with_age(settings: Mapping[str, str], counters: ServerCounters | None) -> bool:
    """Whether the oldest transaction may hold up something that has a limit."""
    if counters is None:
        return False
    freeze = ServerState(settings=settings).number(_MULTIXACT_FREEZE)
    return counters.notify_usage >= _NOTIFY_LONG or _is_old(counters.multixact_age, freeze)


def _is_old(age: int, freeze: float | None) -> bool:
    """Whether autovacuum should have frozen it long ago, or the numbers end soon."""
    return freeze is not None and age >= min(_PAST_FREEZE * freeze, _NEARLY_LAST)


def _connections(state: ServerState) -> Finding | None:
    most = state.number("max_connections")
    if most is None or not state.now.connections:
        return None
    reserved = state.number("superuser_reserved_connections") or 0.0
    reserved += state.number("reserved_connections") or 0.0
    usable = most - reserved
    used = sum(one.sessions for one in state.now.connections)
    if used < _MANY * usable:
        return None
    holders: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for one in state.now.connections:
        holders[one.role, one.application][one.state] += one.sessions
    (role, application), states = max(holders.items(), key=lambda item: item[1].total())
    name, largest, resting = application or role or _NO_ROLE, states.total(), states["idle"]
    open_ = sum(n for doing, n in states.items() if doing.startswith("idle in transaction"))
    theirs = sum(one.sessions for one in state.now.connections if one.role == role)
    room = max(1, int(0.6 * usable))
    now = next((one.limit for one in state.now.connections if one.role == role), None)
    may_be_limited = role and theirs > room and now is not None and (now < 0 or now > room)
    reached = used >= _ALL * usable
    return of_limit(
        "connections",
        reached=reached,
        object="max_connections",
        title=f"connections are nearly used up (max_connections), the most by {name}",
        evidence=[
            f"{used} of {usable:.0f} connections are in use "
            f"(max_connections = {most:.0f}, {reserved:.0f} reserved)",
            f"{name}{f' (role {role})' if role else ''}: "
            f"{numbers.counted(largest, 'connection')}, {resting} of them idle, {open_} idle in "
            "transaction",
        ],
        why="when all are used, nobody can connect but superusers",
        remedy=[
            Remedy(
                does=f"let {name} use a pooler, or give its own pool a smaller limit"
                if role
                else "see in the server's log who connects: they have not logged in yet (from 18 "
                "on these are listed), or their role was dropped"
            ),
            *([_end_idle(role, application)] if role and resting else []),
            *([_idle_limit(role, in_transaction=open_ > resting)] if role else []),
            *([_limited(role, room, theirs)] if may_be_limited else []),
        ],
        sure="certain",
        because="the sessions were counted",
        figures={"connections": float(used), "usable_connections": usable},
    )


def _idle_limit(role: str, *, in_transaction: bool) -> Remedy:
    """What ends the sessions of a role that do nothing."""
    if in_transaction:
        return remedies.idle_timeout(role)
    return remedies.role_setting(
        role,
        "idle_session_timeout",
        "'10min'",
        "ends sessions that do nothing for so long, of new sessions",
        "pools that do not expect it report errors",
    )


def _limited(role: str, room: int, theirs: int) -> Remedy:
    """What keeps a role from taking all connections."""
    return Remedy(
        command=f"ALTER ROLE {remedies.identifier(role)} CONNECTION LIMIT {room};",
        does="keeps room for the others",
        risk=f"further connections of the role are refused; it has {theirs} now",
        privilege="the right to alter the role",
    )


def _end_idle(role: str, application: str) -> Remedy:
    """What makes room at once; the limits after it only hold for what connects next."""
    return remedies.end_those(
        f"backend_type = 'client backend' AND usename = {remedies.literal(role)} "
        f"AND application_name = {remedies.literal(application)} AND state = 'idle' "
        "AND state_change < now() - interval '10 minutes'",
        "makes room at once: ends those that have been idle for ten minutes; a row for each",
        "their connections are lost, and what such a session keeps: temporary tables, advisory "
        "locks, LISTEN",
    )


def _slot(slot: Slot, state: ServerState) -> Finding | None:
    if slot.status == "lost":
        return _lost_slot(slot)
    most = state.number("max_slot_wal_keep_size")  # MB; -1: no limit
    limit = most * (1 << 20) if most is not None and most >= 0 else None
    near = slot.status == "unreserved" or (limit and slot.kept_bytes >= _KEPT_SHARE * limit)
    stuck = slot.active and slot.position == state.slots_before.get(slot.name, -1)
    if slot.active and slot.status != "unreserved" and not (near and stuck):
        return None  # its consumer keeps up by itself
    if not near and slot.kept_bytes < _KEPT_BYTES:
        return None
    rate, past = state.per_s("wal_bytes"), slot.safe_bytes is not None and slot.safe_bytes <= 0
    left = slot.safe_bytes / rate if slot.safe_bytes is not None and rate else None
    if past:
        left = 0.0
    if slot.active:
        title = (
            f"{slot.application or 'its consumer'} (pid {slot.pid}) reads the replication slot "
            f"{slot.name}, but {'confirms nothing' if stuck else 'is far behind'}, and WAL is kept"
        )
    else:
        title = f"nobody reads the replication slot {slot.name}, and it keeps WAL"
    evidence = [
        f"{numbers.volume(slot.kept_bytes)} of WAL kept by the {slot.kind} slot {slot.name}, "
        f"status {slot.status or 'unknown'}, {'active' if slot.active else 'inactive'}"
    ]
    if limit:
        evidence.append(f"max_slot_wal_keep_size = {numbers.volume(int(limit))}")
    if past:
        evidence.append("it keeps more than it may: it is lost at the next checkpoint")
    elif left is not None:
        evidence.append(f"at {numbers.volume(int(rate or 0))} a second it is lost in {spent(left)}")
    return of_limit(
        f"slot/{slot.name}",
        reached=False,
        left_s=left,
        object=slot.name,
        title=title,
        evidence=evidence,
        why="WAL that a slot keeps fills the disk, or, past max_slot_wal_keep_size, the slot is "
        "given up and its consumer must begin anew",
        remedy=_slot_remedies(slot),
        sure="certain",
        because="the server lists its slots",
        figures={"kept_bytes": float(slot.kept_bytes)},
    )


def _lost_slot(slot: Slot) -> Finding:
    """A slot that was invalidated, for whichever reason: it keeps nothing any more."""
    reason = slot.reason or "wal_removed"
    said = _INVALIDATED.get(reason, f"was invalidated ({reason})")
    return of_limit(
        f"slot/{slot.name}",
        reached=reason != _IDLE,
        object=slot.name,
        title=f"the replication slot {slot.name} {said}",
        evidence=[
            f"the {slot.kind} slot {slot.name}, status lost"
            + (f" ({slot.reason})" if slot.reason else "")
        ],
        why="its consumer cannot go on from it, and must begin anew",
        remedy=[
            Remedy(
                does="make its consumer anew, if there still is one: a standby from a backup, a "
                "subscriber by a copy of the data"
            ),
            remedies.drop_slot(slot.name, "then: nothing can be read from it any more"),
        ],
        sure="certain",
        because="the server lists its slots",
    )


def _slot_remedies(slot: Slot) -> list[Remedy]:
    if not slot.active:
        return [
            Remedy(does="bring its consumer (subscriber, standby, CDC) back"),
            remedies.drop_slot(slot.name),
        ]
    return [
        Remedy(
            does="look at its consumer, and restart it if it confirms nothing: a slot that is "
            "being read cannot be dropped"
        ),
        remedies.setting(
            "max_slot_wal_keep_size", "-1", "gives it time", "WAL fills the disk meanwhile"
        ),
    ]


def _transaction_numbers(state: ServerState, samples: Sequence[SessionsSample]) -> Finding | None:
    freeze, after = state.number("autovacuum_freeze_max_age"), state.after
    if freeze is None or after is None or not _is_old(after.xid_age, freeze):
        return None
    reached = after.xid_age >= _NEARLY_LAST
    # in any database: none counts as frozen past the oldest snapshot of all, as they share some
    # catalogues
    holder = oldest_holder(h for h in state.now.horizon if h.age_xids >= 0.5 * after.xid_age)
    session = None
    title = (
        f"vacuum does not freeze the rows of database {after.xid_database} fast enough "
        "(transaction numbers, wraparound)"
    )
    evidence = [
        f"database {after.xid_database}: {after.xid_age:,} transactions since its oldest row was "
        f"frozen; autovacuum_freeze_max_age = {freeze:,.0f}, and the end is at 2 billion"
    ]
    fixes: list[Remedy] = []
    if holder is not None:
        session = session_of_process(samples, holder.pid)
        name, fixes = held_by(holder, session, state.slots)
        title = (
            f"{name} keeps vacuum from freezing the rows of database {after.xid_database} "
            "(transaction numbers, wraparound)"
        )
        evidence.append(
            f"{name} keeps the horizon {holder.age_xids:,} transactions back{where(holder)}"
        )
    return of_limit(
        "xid",
        reached=reached,
        root=who(session),
        object=after.xid_database,
        title=title,
        evidence=evidence,
        why="at 2 billion the server takes no more writes until the rows are frozen",
        remedy=[
            *fixes,
            _vacuum(
                after.xid_database,
                (", once that is over" if fixes else "")
                + ": says which tables, and what keeps it back",
            ),
            *_faster_autovacuum(state),
        ],
        sure="certain",
        because="the server counts them",
        figures={"xid_age": float(after.xid_age)},
    )


def _vacuum(database: str, more: str = "") -> Remedy:
    """Freezes what is old enough, and no more, of all tables of a database."""
    if database == "template0":
        return Remedy(does="let autovacuum freeze template0, to which nobody can connect")
    return Remedy(
        command="VACUUM (VERBOSE);",
        does=f"in database {database}{more}",
        risk="reads and writes whole tables",
        privilege="a superuser, for the catalogues as well; or the tables' owners",
    )


def _faster_autovacuum(state: ServerState) -> list[Remedy]:
    """Ten times as much work for autovacuum, or what the largest limit lets it do."""
    limit = state.number("autovacuum_vacuum_cost_limit") or 0.0
    if limit <= 0:  # then it has that of VACUUM
        limit = state.number("vacuum_cost_limit") or _COST_LIMIT
    larger = min(10 * limit, _MOST_COST_LIMIT)
    if larger <= limit:
        return []
    return [
        remedies.setting(
            "autovacuum_vacuum_cost_limit",
            f"{larger:.0f}",
            f"lets autovacuum do {larger / limit:.2g} times as much (the limit is {limit:.0f} now)",
            "it reads and writes as much more, next to what sessions do",
        )
    ]


def _multixacts(state: ServerState) -> Finding | None:
    freeze, after = state.number(_MULTIXACT_FREEZE), state.after
    if freeze is None or after is None or not _is_old(after.multixact_age, freeze):
        return None
    reached = after.multixact_age >= _NEARLY_LAST
    one = _oldest(state)
    said = "" if one is None else f": the transaction of {named(one)} is the oldest"
    return of_limit(
        "multixact",
        reached=reached,
        root=who(one),
        object=after.multixact_database,
        title=f"vacuum does not freeze the multixacts of database {after.multixact_database} fast "
        f"enough{said}",
        evidence=[
            f"{after.multixact_age:,} multixacts since its oldest one; {_MULTIXACT_FREEZE} = "
            f"{freeze:,.0f}, and the end is at 2 billion, or where their members fill 4 billion",
            *_age(one),
        ],
        why="rows that several transactions lock, as foreign keys do, take multixacts; without any "
        "left such locks fail",
        remedy=[
            _vacuum(after.multixact_database),
            *_if("that does not make its age smaller", _ended(one)),
        ],
        sure="possible" if one is not None else "certain",
        because="no view tells who needs the oldest multixact; perhaps the oldest transaction"
        if one is not None
        else "the server counts them",
        figures={"multixact_age": float(after.multixact_age)},
    )


def _notifications(state: ServerState) -> Finding | None:
    usage = state.after.notify_usage if state.after is not None else 0.0
    if usage < _NOTIFY_LONG:
        return None
    reached, one = usage >= _NOTIFY_FULL, _oldest(state)
    return of_limit(
        "notify",
        reached=reached,
        root=who(one),
        object="notifications",
        title=f"the queue of notifications (NOTIFY) is {'' if reached else 'half '}full",
        evidence=[f"pg_notification_queue_usage() = {usage:.2f}", *_age(one)],
        why="a session that listens, and stays in a transaction, keeps all notifications since it "
        "began; when the queue is full, transactions with NOTIFY fail",
        remedy=[
            Remedy(
                does="look into the server's log for «NOTIFY queue is»: it names the process that "
                "keeps the most; end its transaction, or let its application stay in none"
            ),
            *_if("it is the one that the log names", remedies.end(one) if one else []),
        ],
        sure="certain" if one is None else "possible",
        because="the server says how full it is"
        if one is None
        else "who listens cannot be seen; it is a session with an old transaction, perhaps the "
        "oldest",
        figures={"usage": usage},
    )


def _oldest(state: ServerState) -> SampledSession | None:
    """Who has the oldest transaction, if it is old: on a busy server another one each moment."""
    one = state.now.oldest
    return one if one is not None and (one.xact_age_s or 0.0) >= _OLD_S else None


def _if(condition: str, fixes: Iterable[Remedy]) -> list[Remedy]:
    """Remedies that only help under a condition."""
    return [each.model_copy(update={"does": f"if {condition}: {each.does}"}) for each in fixes]


def _ended(one: SampledSession | None) -> list[Remedy]:
    """What ends a transaction, the oldest or that with most locks; replay cannot be ended."""
    if one is None or one.backend_type == "startup":
        return []
    return [*remedies.end(one), *remedies.not_again(one)]


def _age(one: SampledSession | None) -> list[str]:
    if one is None or one.xact_age_s is None:
        return []
    return [f"{named(one)} is {one.state}, its transaction open for {spent(one.xact_age_s)}"]


def _lock_table(state: ServerState) -> Finding | None:
    """The table has places for what is locked, and twice as many for who locks it."""
    sizes = [
        state.number(name)
        for name in ("max_locks_per_transaction", "max_connections", "max_prepared_transactions")
    ]
    table = state.lock_table
    if table is None or None in sizes:
        return None
    each, *sessions = (size or 0.0 for size in sizes)
    sessions += [state.number(name) or 0.0 for name in _WITH_LOCKS]
    sessions += [size for size in map(state.number, _AUTOVACUUM) if size][:1]
    places = each * sum(sessions)
    share = max(table.objects, table.locks / 2) / max(places, 1.0)
    if share < _LOCKS_MANY:
        return None
    reached, one = share >= _LOCKS_FULL, table.holder
    name = "prepared transactions"
    if one is not None:
        name = one.application or one.role or one.backend_type
    return of_limit(
        "locks",
        reached=reached,
        root=who(one),
        object="max_locks_per_transaction",
        title=f"the lock table is {'' if reached else 'nearly '}full, the most by {name} "
        "(max_locks_per_transaction)",
        evidence=[
            f"{table.locks:,} locks of {table.objects:,} things; there is room for those of "
            f"{places:,.0f} (max_locks_per_transaction = {each:.0f}, for each process and prepared "
            "transaction that there may be), and a little more",
            f"{name}: {table.theirs:,} locks of {numbers.counted(table.sessions, 'session')}",
        ],
        why="a statement that finds no room fails with «out of shared memory», whoever it is; each "
        "partition and index that a transaction touches takes a place until it ends",
        remedy=[
            *_ended(one),
            Remedy(
                command=f"ALTER SYSTEM SET max_locks_per_transaction = {2 * each:.0f};",
                does="gives twice the room",
                risk="needs a restart; standbys need as much: raise it on all standbys first",
                privilege="ALTER SYSTEM",
            ),
        ],
        sure="certain",
        because="the locks were counted",
        figures={"locks": float(table.locks), "objects": float(table.objects), "places": places},
    )
