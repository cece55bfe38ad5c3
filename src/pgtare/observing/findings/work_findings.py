"""Findings of the log, standbys, clients, observers and resources that active time goes to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from pgtare.kit import numbers
from pgtare.observing.findings import remedies
from pgtare.observing.findings.causes import CPU, RESOURCE, Cause
from pgtare.observing.findings.finding_parts import of_cause, share_line, short, spent
from pgtare.observing.findings.model import INFORMATION, Finding, Remedy
from pgtare.observing.findings.observation import moment
from pgtare.observing.findings.partition import Partition
from pgtare.observing.findings.statement_findings import CROWDED, contention, is_queue

#: A commit that waits so long for the log is slow, s.
_SLOW_COMMIT_S = 0.01
#: One that waits so long, s, is what others wait for, however many commits there are.
_LONG_COMMIT_S = 1.0
#: From fewer commits that were seen to wait, nothing is concluded.
_FEW_SEEN = 5
_LESS_LOG = [
    Remedy(
        does="let fewer sessions load or change much at once; make indexes after a load, not before"
    ),
    Remedy(
        does="write less: after each checkpoint a page goes to the log as a whole once, so a "
        "larger max_wal_size and wal_compression help; what can be lost needs no log (UNLOGGED "
        "tables)"
    ),
]
#: A statement that waits so long for its client is worth telling, s; and one that is a fault.
_CLIENT_S, _LONG_CLIENT_S = 5.0, 60.0
#: synchronous_standby_names: how many are wanted, of which; one of the names, in quotes or not.
_WANTED = re.compile(r"\s*(?:(?:FIRST|ANY)\s+)?(\d+)\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)
_STANDBY = re.compile(r'"((?:[^"]|"")*)"|([\w.*-]+)')


_INFO: Mapping[str, Any] = {"class_": INFORMATION, "level": "info"}


def _found(cause: Cause, whole: Partition, *, evidence: Iterable[str] = (), **more: Any) -> Finding:
    """A finding of what sessions wait for. evidence: after their share of the time."""
    share = f"{share_line(whole.share(cause), whole.aas(cause))}: {', '.join(cause.events.most(3))}"
    fields: dict[str, Any] = {
        "evidence": [share, *evidence],
        "sure": "likely",
        "because": "sessions were seen to wait for it",
        "figures": {"sessions": whole.aas(cause)},
    }
    return of_cause(cause, whole, **fields | more)


def log(cause: Cause, whole: Partition, *, busy: bool) -> Finding | None:
    """Commits that wait for the log."""
    each = _each_commit_s(cause, whole)
    slow = (each is not None and each >= _SLOW_COMMIT_S) or cause.is_outage
    if not slow and not (busy and _takes_most(cause, whole)):
        return None
    outage = cause.is_outage and whole.is_large(cause)
    level = {} if slow else _INFO
    text = _statement(cause, whole)
    evidence = [f"the most by «{short(text)}»"] if text else []
    if cause.writing_s >= cause.seconds / 2:
        return _found(
            cause,
            whole,
            outage=outage,
            **level,
            title="sessions queue to write to the log (WAL)",
            evidence=evidence,
            why="all that changes goes to the log first: through buffers that sessions share, "
            "then to the disk",
            remedy=_LESS_LOG,
        )
    if each is not None:
        commits = whole.state.per_s("commits") or 0.0
        evidence.insert(
            0,
            f"each commit waits {spent(each)} for the log; {commits:,.0f} commits a second, with "
            "those of transactions that only read",
        )
    return _found(
        cause,
        whole,
        outage=outage,
        **level,
        title="commits wait until the log (WAL) is on its disk",
        evidence=evidence,
        why="a commit returns when its part of the log is on disk, and the disk takes so long",
        remedy=[
            Remedy(
                does="put more changes into one transaction: one sync for all of them (batches)"
            ),
            Remedy(
                command="SET synchronous_commit = off;",
                does="in sessions whose last commits may be lost if the server crashes",
                risk="up to three times wal_writer_delay of commits are lost in a crash; nothing "
                "is corrupted",
            ),
            Remedy(does="give the log a faster disk, one with a cache that survives"),
        ],
    )


def is_quick(cause: Cause, whole: Partition) -> bool:
    """Whether each commit is known to wait for the log, or a standby, for a moment only."""
    each, longest = _each_commit_s(cause, whole), max(cause.commit_waits, default=0.0)
    return each is not None and each < _SLOW_COMMIT_S and longest < _LONG_COMMIT_S


def _takes_most(cause: Cause, whole: Partition) -> bool:
    """Whether it is what the sessions are busy with."""
    return whole.share(cause) >= 0.5 and whole.aas(cause) >= 1.0


def _each_commit_s(cause: Cause, whole: Partition) -> float | None:
    """How long each commit waits, s; None if nothing was committed, or that is not known.

    Transactions that only read are counted as commits, too. So there are two other ways, and the
    longest counts: by calls of the statements that wait; and of what ends a transaction of several
    statements, twice what it had waited when it was seen, as a sample falls into the middle.
    """
    state = whole.state
    commits = state.per_s("commits")
    if not commits:
        return None
    counted = [key for key in cause.commits_s if key in state.statements]
    calls = sum(state.statements[key].calls for key in counted) / whole.observation.counted_s
    by_calls_s = 0.0
    if calls and whole.observation.seconds:
        spent_s = sum(cause.commits_s[key] for key in counted)
        by_calls_s = spent_s / whole.observation.seconds / calls
    # a procedure that commits again and again is one call
    by_calls_s = min(by_calls_s, _by_waits_s(cause.commit_waits))
    committing = whole.aas(cause) * (1 - cause.handed_s / cause.seconds)
    return max(committing / commits, by_calls_s, _by_waits_s(cause.ended_waits))


def _by_waits_s(waits: list[float]) -> float:
    return 2 * median(waits) if len(waits) >= _FEW_SEEN else 0.0


def _statement(cause: Cause, whole: Partition) -> str:
    texts = (whole.observation.text(key) for key in cause.statements.most(3))
    return next((text for text in texts if text), "")


def _standbys(wanted: str, connected: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names of a setting; those of them that are missing, if fewer are there than wanted."""
    counted = _WANTED.fullmatch(wanted)
    number, listed = (int(counted[1]), counted[2]) if counted else (1, wanted)
    names = [quoted.replace('""', '"') or plain for quoted, plain in _STANDBY.findall(listed)]
    known, there = ({name.casefold() for name in these} for these in (names, connected))
    if sum("*" in known or name.casefold() in known for name in connected) >= number:
        return names, []
    if "*" in known:
        return names, ["any standby"]
    return names, [name for name in names if name.casefold() not in there]


def sync_rep(cause: Cause, whole: Partition, *, busy: bool) -> Finding | None:
    """Commits that wait for a standby, which is no fault as long as each waits for a moment."""
    wanted = whole.state.settings.get("synchronous_standby_names", "")
    names, missing = _standbys(wanted, whole.state.now.standbys)
    there = set(whole.state.now.standbys)
    outage = whole.is_large(cause) and cause.longest_wait_s >= _CLIENT_S
    each = _each_commit_s(cause, whole)
    none_ends = whole.state.per_s("commits") == 0
    slow = bool(missing) or outage or cause.is_outage or none_ends or (each or 0) >= _SLOW_COMMIT_S
    if not slow and not (busy and _takes_most(cause, whole)):
        return None
    if missing:
        title = f"commits wait for a synchronous standby that is not connected: {missing[0]}"
    else:
        state = "that is slow" if slow else "as they should"
        title = f"commits wait for a synchronous standby {state}: {', '.join(names)}"
    connected = ", ".join(sorted(there)) or "none"
    return _found(
        cause,
        whole,
        outage=outage,
        **({} if slow else _INFO),
        object=missing[0] if missing else ", ".join(names),
        victims=sorted(cause.waits),
        title=title,
        evidence=[
            f"synchronous_standby_names = '{wanted}', connected standbys: {connected}",
            f"the longest wait: {spent(cause.longest_wait_s)}"
            + (f"; each commit waits {spent(each)}" if each is not None else ""),
        ],
        why="a commit returns only when these standbys have its part of the log",
        remedy=_standby_remedies(wanted, outage=bool(missing) or outage, slow=slow),
        sure="certain",
    )


def _standby_remedies(wanted: str, *, outage: bool, slow: bool) -> list[Remedy]:
    """wanted: synchronous_standby_names, to set it again."""
    if not slow:
        return [Remedy(does="nothing: this is what synchronous replication costs")]
    if not outage:
        return [
            Remedy(
                does="look at the standby and the network to it: it answers late, and each commit "
                "waits for its answer"
            )
        ]
    return [
        Remedy(does="bring the standby back, or its network"),
        remedies.setting(
            "synchronous_standby_names",
            "''",
            "if that takes too long: commits no longer wait, those that wait now included",
            "what commits from now on is lost if this server is lost before a standby has it; "
            "where a cluster manager (Patroni, …) sets it, use the manager's own command",
        ),
        remedies.setting(
            "synchronous_standby_names",
            remedies.literal(wanted),
            "after that, when the standby is back: commits wait again",
        ),
    ]


def client(cause: Cause, whole: Partition) -> Finding | None:
    """A client that does not send or take what its statement needs."""
    if cause.longest_wait_s < _CLIENT_S or not cause.waiters:
        return None
    one = max(cause.waiters.values(), key=lambda each: each.query_age_s or 0.0)
    text = one.text or _statement(cause, whole)
    goes_on = any(
        (seen.pid, seen.query_us) == (one.pid, one.query_us)
        and seen.is_active
        and seen.type != "Client"
        for sample in whole.observation.samples
        for seen in sample.sessions
    )
    if goes_on:
        what = "sends its data slowly" if one.event == "ClientRead" else "takes its result slowly"
    else:
        what = "sends no data" if one.event == "ClientRead" else "does not take its result"
    name = one.application or one.role
    long = not goes_on and (one.xact_age_s or 0.0) >= _LONG_CLIENT_S
    return _found(
        cause,
        whole,
        **({} if long else _INFO),
        since=moment(cause.since),
        title=f"{name} (pid {one.pid}) waits for its client in the middle of a statement: the "
        f"client {what}",
        evidence=[
            f"statement «{short(text)}» for {spent(one.query_age_s or 0.0)}, role {one.role}"
        ],
        why="the server waits for the client or the network, with the transaction open: it keeps "
        "its locks, and vacuum from removing rows",
        remedy=[
            Remedy(
                does="look at the client: what it does between two pieces of data, its network, "
                "and its driver's fetch size"
            ),
            *([] if goes_on else remedies.end(one)[-1:]),
        ],
        sure="certain",
    )


def observer(cause: Cause, whole: Partition) -> Finding:
    """An observer whose own lock sessions wait for."""
    return _found(
        cause,
        whole,
        title=f"sessions wait for the lock of {cause.name}, which only observes",
        why="each statement enters what it did into a table in shared memory, and another one has "
        "the table locked",
        remedy=[
            Remedy(
                command=f"pgtare weigh {cause.name} --dsn …",
                does="says what it costs a transaction",
            )
        ],
    )


def resources(causes: list[Cause], whole: Partition) -> list[tuple[Cause, Finding]]:
    """What many small statements have in common: one lock in memory, or the processors."""
    events: dict[str, Cause] = {}
    for cause in causes:
        for event, seconds in cause.events.items():
            key = CPU if event == "CPU" else f"{RESOURCE}/{event}"
            kind = CPU if event == "CPU" else RESOURCE
            common = events.setdefault(key, Cause(kind, key, event))
            common.seconds += seconds
            for at, spent_s in cause.seconds_at.items():
                common.seconds_at.add(at, spent_s * seconds / cause.seconds)
            common.events.add(event, seconds)
            common.statements.add(next(iter(cause.statements)), seconds)
            common.waiters |= cause.waiters
            common.first_at = min(common.first_at or cause.first_at, cause.first_at)
            common.last_at = max(common.last_at, cause.last_at)
    return [
        (common, made)
        for common in events.values()
        if (made := _resource(common, whole)) is not None
    ]


def _resource(common: Cause, whole: Partition) -> Finding | None:
    if not common.seconds:
        return None
    statements = numbers.counted(len(common.statements), "statement")
    text = _statement(common, whole)
    more = [f"{statements}, none of them a tenth; for example «{short(text)}»"] if text else []
    if common.kind == CPU:
        processors = whole.state.processors
        if processors is None or whole.on_cpu <= CROWDED * processors:
            return None
        return _found(
            common,
            whole,
            title="many different statements want more processors (CPU) than there are",
            evidence=[
                f"{whole.on_cpu:.1f} sessions want a processor, of which there are {processors:g}",
                *more,
            ],
            why="more sessions compute than there are processors: all wait for their turn",
            remedy=[
                Remedy(
                    does="let fewer sessions run at once (a pooler's limit), or give the server "
                    "more processors; `pgtare flame on` shows what they compute"
                )
            ],
        )
    if not is_queue(common.name):
        return None
    why, does = contention(common.name)
    return _found(
        common,
        whole,
        object=common.name,
        title=f"many different statements queue for {common.name}",
        evidence=more,
        why=f"sessions queue for {why}",
        remedy=[Remedy(does=does)],
    )
