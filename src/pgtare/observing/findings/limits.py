"""Findings of limits that come near: connections, WAL that slots keep, transaction numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pgtare.kit import numbers
from pgtare.observing.findings import remedies
from pgtare.observing.findings.model import LIMIT, OUTAGE, Finding, Remedy
from pgtare.observing.findings.observation import ServerState, Slot
from pgtare.observing.findings.words import spent

#: Of all connections that ordinary roles may have.
_MANY, _ALL = 0.85, 0.97
#: A slot that keeps so much, where nothing limits it, is worth telling; or of its limit so much.
_KEPT_BYTES, _KEPT_SHARE = 4 << 30, 0.5
#: Transaction numbers end here; autovacuum begins at autovacuum_freeze_max_age.
_LAST_XID = 2_000_000_000
_PAST_FREEZE = 1.05
_HOUR_S = 3600.0


def check(state: ServerState) -> Iterator[Finding]:
    """All limits that are reached, or come near."""
    for made in (_connections(state), *map(lambda s: _slot(s, state), state.now.slots)):
        if made is not None:
            yield made
    made = _transaction_numbers(state)
    if made is not None:
        yield made


def _class(reached: bool, left_s: float | None) -> int:
    return OUTAGE if reached or (left_s is not None and left_s < _HOUR_S) else LIMIT


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
    holders: Counter[tuple[str, str]] = Counter()
    idle: Counter[tuple[str, str]] = Counter()
    for one in state.now.connections:
        holders[one.role, one.application] += one.sessions
        idle[one.role, one.application] += one.sessions if one.state.startswith("idle") else 0
    (role, application), largest = holders.most_common(1)[0]
    name, quoted = application or role, remedies.identifier(role)
    resting = idle[role, application]
    reached = used >= _ALL * usable
    return Finding(
        key="limit/connections",
        kind="limit",
        class_=_class(reached, None),
        level="critical" if reached else "warning",
        object="max_connections",
        title=f"connections are nearly used up (max_connections), the most by {name}",
        evidence=[
            f"{used} of {usable:.0f} connections are in use "
            f"(max_connections = {most:.0f}, {reserved:.0f} reserved)",
            f"{name} (role {role}): {numbers.counted(largest, 'connection')}, {resting} of them "
            "idle",
        ],
        why="when all are used, nobody can connect but superusers",
        remedy=[
            Remedy(
                command="",
                does=f"let {name} use a pooler, or give its own pool a smaller limit",
            ),
            Remedy(
                command=f"ALTER ROLE {quoted} CONNECTION LIMIT {max(1, int(0.6 * usable))};",
                does="keeps room for the others",
                risk="the role's further connections are refused",
                privilege="the right to alter the role",
            ),
            Remedy(
                command=f"ALTER ROLE {quoted} SET idle_session_timeout = '10min';",
                does="ends sessions that do nothing for so long, of new sessions",
                risk="pools that do not expect it report errors",
                privilege="the right to alter the role",
            ),
        ],
        sure="certain",
        because="the sessions were counted",
        figures={"connections": float(used), "usable_connections": usable},
    )


def _slot(slot: Slot, state: ServerState) -> Finding | None:
    most = state.number("max_slot_wal_keep_size")  # MB; -1: no limit
    limit = most * (1 << 20) if most is not None and most >= 0 else None
    lost = slot.status == "lost"
    near = slot.status == "unreserved" or (limit and slot.kept_bytes >= _KEPT_SHARE * limit)
    if slot.active and not lost and slot.status != "unreserved":
        return None
    if not lost and not near and slot.kept_bytes < _KEPT_BYTES:
        return None
    rate = state.per_s("wal_bytes")
    left = slot.safe_bytes / rate if slot.safe_bytes is not None and rate else None
    if lost:
        title = f"the replication slot {slot.name} has lost WAL that its consumer still needs"
    else:
        title = f"nobody reads the replication slot {slot.name}, and it keeps WAL"
    evidence = [
        f"{numbers.volume(slot.kept_bytes)} of WAL kept by the {slot.kind} slot {slot.name}, "
        f"status {slot.status or 'unknown'}, {'active' if slot.active else 'inactive'}"
    ]
    if limit:
        evidence.append(f"max_slot_wal_keep_size = {numbers.volume(int(limit))}")
    if left is not None:
        evidence.append(f"at {numbers.volume(int(rate or 0))} a second it is lost in {spent(left)}")
    return Finding(
        key=f"limit/slot/{slot.name}",
        kind="limit",
        class_=_class(lost, left),
        level="critical" if _class(lost, left) == OUTAGE else "warning",
        limit_left_s=left,
        object=slot.name,
        title=title,
        evidence=evidence,
        why="WAL that a slot keeps fills the disk, or, past max_slot_wal_keep_size, the slot is "
        "given up and its consumer must begin anew",
        remedy=[
            Remedy(command="", does="bring its consumer (subscriber, standby, CDC) back"),
            remedies.drop_slot(slot.name),
        ],
        sure="certain",
        because="the server lists its slots",
        figures={"kept_bytes": float(slot.kept_bytes)},
    )


def _transaction_numbers(state: ServerState) -> Finding | None:
    freeze, after = state.number("autovacuum_freeze_max_age"), state.after
    if freeze is None or after is None or after.xid_age < _PAST_FREEZE * freeze:
        return None
    share = after.xid_age / _LAST_XID
    holders = [one for one in state.now.horizon if one.age_xids >= 0.5 * after.xid_age]
    reached = share >= 0.9
    fixes = []
    evidence = [
        f"database {after.xid_database}: {after.xid_age:,} transactions since its oldest row was "
        f"frozen; autovacuum_freeze_max_age = {freeze:,.0f}, and the end is at 2 billion",
    ]
    if holders:
        holder = holders[0]
        evidence.append(f"held by {_holder(holder.kind, holder.name, holder.pid)}")
    fixes.append(
        Remedy(
            command="VACUUM (FREEZE, VERBOSE);",
            does=f"in database {after.xid_database}: says which tables, and what keeps it back",
            risk="reads and writes whole tables",
            privilege="the tables' owners",
        )
    )
    fixes.append(
        remedies.setting(
            "autovacuum_vacuum_cost_limit", "2000", "lets autovacuum do ten times as much"
        )
    )
    return Finding(
        key="limit/xid",
        kind="limit",
        class_=_class(reached, None),
        level="critical" if reached else "warning",
        object=after.xid_database,
        title=f"vacuum does not freeze the rows of database {after.xid_database} fast enough "
        "(transaction numbers, wraparound)",
        evidence=evidence,
        why="at 2 billion the server takes no more writes until the rows are frozen",
        remedy=fixes,
        sure="certain",
        because="the server counts them",
        figures={"xid_age": float(after.xid_age)},
    )


def _holder(kind: str, name: str, pid: int | None) -> str:
    words = {
        "session": f"a session of {name or 'no application name'} (pid {pid})",
        "slot": f"the replication slot {name}",
        "prepared": f"the prepared transaction '{name}'",
        "standby": f"the standby {name} (hot_standby_feedback)",
    }
    return words[kind]
