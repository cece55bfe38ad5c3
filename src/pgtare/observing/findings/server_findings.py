"""Findings of the server's own work: checkpoints, dead rows, new connections, the archive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pgtare.kit import numbers
from pgtare.observing.findings import remedies
from pgtare.observing.findings.finding_parts import named, of_limit, spent, who
from pgtare.observing.findings.model import LIMIT, SETTING, Finding, Remedy, Sure, of_setting
from pgtare.observing.findings.observation import (
    ELSEWHERE,
    HorizonHolder,
    Observation,
    SampledSession,
    ServerState,
    SessionsSample,
    Slot,
    TableTotals,
)

#: Checkpoints are asked for if max_wal_size is full after so many s at the present rate.
_SOON_S = 60.0
#: Connections a second that cost more than their statements.
_CONNECTIONS_S = 25.0
#: A session that began so many s ago is one of those.
_YOUNG_S = 2.0
#: Dead rows, as a multiple of the live ones, and at least.
_DEAD_TIMES, _DEAD_ROWS = 10.0, 10_000
#: A snapshot that is so old keeps rows that nobody should need, s.
_OLD_S = 60.0
#: Those that hold the horizon, or only see one that another holds, the likelier first.
_SESSIONS = ("session", ELSEWHERE)
_END_ON_STANDBY = Remedy(
    does="end the long transaction on that standby, or turn hot_standby_feedback off there"
)


def check(observation: Observation) -> Iterator[Finding]:
    """All of them that are there."""
    made = (
        _checkpoints(observation),
        _dead_rows(observation),
        _connections(observation),
        _archive(observation),
        _deadlocks(observation),
    )
    yield from filter(None, made)


def _checkpoints(observation: Observation) -> Finding | None:
    state = observation.state
    most, target = state.number("max_wal_size"), state.number("checkpoint_completion_target")
    rate, requested = state.per_s("wal_bytes"), state.per_s("checkpoints_requested")
    timeout = state.number("checkpoint_timeout") or 300.0
    if not most or not rate or not requested or state.standby:
        return None
    each = most * (1 << 20) / (1.0 + (target if target is not None else 0.9)) / rate
    if each > min(_SOON_S, timeout / 4):
        return None
    # one step at a time: what the rate of some seconds asks for may not fit on the disk
    wanted = max(2 * most, min(4 * most, rate * timeout * 2 / (1 << 20)))
    rounded = 1 << max(9, int(wanted - 1).bit_length())
    assert state.after is not None
    return Finding(
        key="setting/checkpoints",
        kind="checkpoints",
        class_=SETTING,
        level="warning",
        object="max_wal_size",
        title="checkpoints are requested before their time, because max_wal_size is too small",
        evidence=[
            f"{requested * 60:,.1f} requested checkpoints a minute; "
            f"{state.after.checkpoints_requested:,} of "
            f"{state.after.checkpoints_requested + state.after.checkpoints_timed:,} so far were",
            f"max_wal_size = {most:,.0f} MB, {numbers.volume(int(rate))} of WAL a second: full "
            f"every {spent(each)}; checkpoint_timeout = {spent(timeout)}",
        ],
        why="after each checkpoint the first change of each page goes to the log as a whole page, "
        "and all changed pages are written to their files: the more often, the more work",
        remedy=[
            remedies.setting(
                "max_wal_size",
                f"'{rounded}MB'",
                "fewer checkpoints come before their time; if that is not enough, look again",
                "takes as much room on the disk, and a full disk stops the server; recovery after "
                "a crash takes longer",
            )
        ],
        sure="certain",
        because="the server counts checkpoints and WAL",
        figures={"requested_per_min": requested * 60, "full_every_s": each},
    )


def _dead_rows(observation: Observation) -> Finding | None:
    state = observation.state
    holder = oldest_holder(one for one in state.now.horizon if one.keeps_rows_here)
    if holder is None:
        return None
    old_s = _age_s(holder, state)
    tables = [
        table
        for table in state.tables.values()
        if table.dead >= _DEAD_ROWS
        and table.dead >= _DEAD_TIMES * max(table.live, 1)
        and old_s > _least_age_s(holder, table)
    ]
    if not tables:
        return None
    table = max(tables, key=lambda one: one.dead)
    session = session_of_process(observation.samples, holder.pid)
    age = f", {'some ' if holder.age_s is None else ''}{spent(old_s)} old"
    name, fixes = held_by(holder, session, state.slots)
    sure: Sure = "likely" if holder.age_s is None else "certain"
    if table.vacuumed_age_s is None:
        sure = "possible"
    return Finding(
        key=f"horizon/{holder.kind}/{holder.pid or holder.name}",
        kind="horizon",
        class_=LIMIT,
        level="warning",
        root=who(session),
        object=table.name,
        title=f"the old snapshot of {name} keeps vacuum from removing dead rows of {table.name}",
        evidence=[
            f"{table.name}: {table.dead:,} dead rows, {table.live:,} live ones",
            f"{name} keeps the horizon (xmin) {holder.age_xids:,} transactions back{age}"
            f"{where(holder)}",
        ],
        why="every statement walks over dead rows that vacuum may not remove while somebody may "
        "still see them",
        remedy=fixes,
        sure=sure,
        because="the server names the oldest snapshot, and counts dead rows"
        + ("; its age is taken from the transactions since then" if holder.age_s is None else "")
        + ("; vacuum has not been there yet" if table.vacuumed_age_s is None else ""),
        figures={"dead_rows": float(table.dead), "live_rows": float(table.live)},
    )


def oldest_holder(holders: Iterable[HorizonHolder]) -> HorizonHolder | None:
    """Who keeps the horizon: sessions that see it as the oldest are as old by their snapshots."""

    def order(one: HorizonHolder) -> tuple[float, ...]:
        sees = _SESSIONS.index(one.kind) + 1 if one.kind in _SESSIONS else 0
        return -one.age_xids, sees, -(one.age_s or 0.0)

    return min(holders, key=order, default=None)


def _age_s(holder: HorizonHolder, state: ServerState) -> float:
    """How old its snapshot is, s; of a slot or standby by the transactions since then.

    Only some transactions take a number. How fast they do shows in the age of the oldest database,
    unless vacuum has just made that smaller.
    """
    if holder.age_s is not None:
        return holder.age_s
    rate = state.per_s("xid_age") or state.per_s("commits")
    return holder.age_xids / rate if rate else 0.0


def _least_age_s(holder: HorizonHolder, table: TableTotals) -> float:
    """How old a snapshot must be, s, to have kept rows from the last vacuum.

    That of a slot or standby is always some seconds old, as standbys report it now and then only.
    """
    vacuumed_s = table.vacuumed_age_s
    if vacuumed_s is None:
        return _OLD_S
    return vacuumed_s if holder.age_s is not None else max(vacuumed_s, _OLD_S)


def where(holder: HorizonHolder) -> str:
    """The database of a session or prepared transaction, for a line of evidence."""
    if holder.database is None or holder.is_slot:
        return ""
    return f", in database {holder.database}"


def session_of_process(samples: Sequence[SessionsSample], pid: int | None) -> SampledSession | None:
    """What a process did when it was seen last; None if it was not."""
    if pid is None:
        return None
    seen = (sample.by_process.get(pid) for sample in reversed(samples))
    return next(filter(None, seen), None)


def held_by(
    holder: HorizonHolder, session: SampledSession | None, slots: Iterable[Slot] = ()
) -> tuple[str, list[Remedy]]:
    """Who keeps the horizon, in words, and what makes it let go, the gentlest first."""
    if holder.kind == "prepared":
        return f"the prepared transaction {remedies.literal(holder.name)}", [
            remedies.rollback_prepared(holder.name, holder.database, None)
        ]
    if holder.is_slot:
        return f"the replication slot {holder.name}", _slot_remedies(holder, slots)
    if holder.kind == "standby":
        return f"the standby {holder.name}", [_END_ON_STANDBY]
    name = named(session) if session else f"{holder.name or 'a session'} (pid {holder.pid})"
    if session is None:
        return name, [
            Remedy(
                command=f"SELECT * FROM pg_stat_activity WHERE pid = {holder.pid};",
                does="what it does",
            )
        ]
    state = "" if session.state == "active" else f", which is {session.state},"
    return f"{name}{state}", [*remedies.end(session), *remedies.not_again(session)]


def _slot_remedies(holder: HorizonHolder, slots: Iterable[Slot]) -> list[Remedy]:
    """What a slot needs; one that is being read cannot be dropped, and its consumer is there."""
    reads = next((one for one in slots if one.name == holder.name and one.active), None)
    if reads is None:
        return [Remedy(does="bring its consumer back"), remedies.drop_slot(holder.name)]
    if reads.kind == "physical":
        return [_END_ON_STANDBY]
    return [
        Remedy(
            does="look at its consumer, which is connected: it confirms nothing, or a transaction "
            "is open that began so long ago"
        )
    ]


def _connections(observation: Observation) -> Finding | None:
    rate = observation.state.per_s("new_sessions")
    if rate is None or rate < _CONNECTIONS_S:
        return None
    young: Counter[tuple[str, str]] = Counter()
    for sample in observation.samples:
        for one in sample.sessions:
            began_s = sample.at - one.started_us / 1e6
            if one.role and one.backend_type == "client backend" and began_s < _YOUNG_S:
                young[one.role, one.application] += 1
    name, by = "", "the samples met none of them"
    if young:
        (role, application), seen = young.most_common(1)[0]
        name = f" by {application or role}"
        by = f"{seen} of {young.total()} new ones that the samples met were of role {role}"
        by += f", application {application}" if application else ""
    return of_setting(
        "connections",
        level="warning",
        title=f"new connections all the time{name}, each for a moment",
        evidence=[f"{rate:,.0f} new sessions a second", by],
        why="each connection starts a process, logs in and reads its catalogs: some milliseconds "
        "of processor time for what may be one quick statement",
        remedy=[
            "-- put a pooler in front of the server (pgbouncer), or let the application keep its "
            "connections in a pool"
        ],
        sure="certain",
        because="the server counts sessions",
        figures={"new_sessions_per_s": rate},
    )


def _archive(observation: Observation) -> Finding | None:
    state = observation.state
    after, mode = state.after, state.settings.get("archive_mode")
    if after is None or not after.archive_failing:
        return None
    if mode == "off" or (mode == "on" and state.standby):
        return None  # what failed was before, and is not tried again
    return of_limit(
        "archive",
        reached=False,
        kind="archive",
        object=after.archive_failed_wal,
        title="the archive does not take WAL: archive_command or archive_library fails",
        evidence=[
            f"{numbers.counted(after.archive_failed, 'failure')}, the latest of "
            f"{after.archive_failed_wal}, and none taken since"
        ],
        why="WAL that is not archived stays and fills the disk, and backups lack it",
        remedy=[
            Remedy(
                command="SELECT * FROM pg_stat_archiver;",
                does="the server's log says what the command printed; it is tried again by itself",
            )
        ],
        sure="certain",
        because="the server counts failures",
        figures={"failures": float(after.archive_failed)},
    )


def _deadlocks(observation: Observation) -> Finding | None:
    rate = observation.state.per_s("deadlocks")
    if not rate:
        return None
    statements: Counter[str] = Counter()
    applications: Counter[str] = Counter()
    for sample in observation.samples:
        for one in sample.sessions:
            if one.type == "Lock" and one.is_active:
                statements[observation.text(one.statement)] += 1
                applications[one.application or one.role] += 1
    evidence = [f"{rate * 60:,.1f} deadlocks a minute: each ended a transaction with an error"]
    evidence += [f"waiting for locks: «{text}»" for text, _ in statements.most_common(2) if text]
    if applications:
        # not in the title: the next one may be another, and the deadlocks are the same
        evidence.append(
            f"the most waits for locks are those of {applications.most_common(1)[0][0]}"
        )
    return of_setting(
        "deadlocks",
        level="warning",
        title="transactions deadlock: they take the same locks in different orders",
        evidence=evidence,
        why="each waits for the other until deadlock_timeout, then one is ended with an error",
        remedy=[
            "-- let all transactions change rows in one order, by key for example; the server's "
            "log has both statements"
        ],
        sure="certain",
        because="the server counts deadlocks",
        figures={"deadlocks_per_min": rate * 60},
    )
