"""Incidents on a server, and whether `pgtare doctor` and an agent name the cause and who it is.

A private server with all modules has a light load. Incidents and calm cases are played on it one
after the other. Nine seconds after each began the doctor is asked, and a while later an agent that
runs all the time, by its spool. Both score 2 if their first finding has the right cause and names
its root, 1 if the root is missing or another finding comes first, and 0 for nothing or something
else. If all is calm, silence and level `info` score 2, a warning 1, something critical 0.

Some incidents are those of public reports (`--reports` plays these alone). Their patterns say what
the reports do, whether or not it is found.

SQL proves that each case really happens; if it does not, the line says "not staged", and there is
no score. A finding whose evidence fits the causes of several other incidents is listed: it says too
much to be of use. The exit status is 1 if a case was not staged.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from bench.findings_cases import (
    calm,
    clients,
    limits,
    locks,
    report_limits,
    reports,
    server_work,
    standby,
    statements,
)
from bench.findings_cases.case import Case
from bench.findings_judge import Verdict, cross_matches, judge
from bench.findings_stage import questions
from bench.findings_stage.hands import Stage
from bench.findings_stage.questions import Agent, Answer
from bench.findings_stage.server import Kind, stage
from pgtare.errors import PgtareError, UsageError

TAKES = "25 minutes for the doctor alone, 60 with an agent; less if cases are named"

#: Those made after public reports of outages.
REPORTS: tuple[Case, ...] = (*reports.CASES, *report_limits.CASES)
CASES: tuple[Case, ...] = (
    *locks.CASES,
    *statements.CASES,
    *server_work.CASES,
    *clients.CASES,
    *limits.CASES,
    *standby.CASES,
    *REPORTS,
    *calm.CASES,
)
_BY_NAME = {case.name: case for case in CASES}
#: Cases of one family have much the same cause; each of the others is one of its own.
_FAMILIES = {
    **{case.name: "locks" for case in (*locks.CASES, *standby.CASES)},
    **{case.name: "statements" for case in statements.CASES},
    **dict.fromkeys(("small_log", "page_images"), "checkpoints"),
    **dict.fromkeys(("old_snapshot", "prepared_horizon", "undead_reader"), "horizon"),
    **dict.fromkeys(("slow_copy", "slow_reader"), "clients"),
    **dict.fromkeys(("wraparound_vacuum", "key_to_parent", "migration_ring"), "locks"),
    **dict.fromkeys(("no_statistics", "pending_list"), "statements"),
    **dict.fromkeys(("old_numbers", "multixact_age"), "numbers"),
    **dict.fromkeys(("forgotten_slot", "frozen_consumer"), "slots"),
    **dict.fromkeys(("notify_queue", "notify_full"), "notify"),
}

#: When the doctor is asked, and when the agent, after a case began.
DOCTOR_S, AGENT_S = 9.0, 42.0
#: How long an agent knows the server before the first case.
_AGENT_KNOWS_S = 12.0
#: After the doctor, for how long the proof is looked for again.
_PROOF_S = 8.0
_FIRST_GUESS_S = {False: 19.0, True: 50.0}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="of cases; all, if none is named")
    parser.add_argument("--list", action="store_true", help="what should be said of each case")
    parser.add_argument("--reports", action="store_true", help="those after public reports only")
    parser.add_argument("--no-agent", action="store_true", help="ask the doctor only")
    parser.add_argument("--plain", action="store_true", help="a server without any module")
    parser.add_argument("--version", type=int, default=18, choices=[15, 18])
    parser.add_argument("--standby", action="store_true", help="look at a standby")
    parser.add_argument("--pgbouncer", action="store_true", help="loads go through pgbouncer")
    parser.add_argument("--output", type=Path, metavar="FILE", help="all that was said, as JSON")


@dataclass
class Result:
    """Of one case. problem: why there is no score."""

    name: str
    calm: bool
    problem: str = ""
    doctor: Verdict | None = None
    agent: Verdict | None = None
    cross: dict[str, list[str]] = field(default_factory=dict)
    said: dict[str, Answer] = field(default_factory=dict)

    @property
    def note(self) -> str:
        if self.problem:
            return self.problem
        notes = []
        for who, verdict in (("", self.doctor), ("agent: ", self.agent)):
            if verdict and verdict.note and who + verdict.note not in notes:
                notes.append(who + verdict.note)
        return "; ".join(notes)


def main(args: argparse.Namespace) -> int:
    """Print a line for each case, and sums; 1 if a case was not staged."""
    kind = Kind(args.version, args.plain, args.standby, args.pgbouncer)
    chosen = [one for one in _chosen(args.names, kind) if one in REPORTS or not args.reports]
    if args.list:
        for case in chosen:
            print(f"{case.name:22} {case.says}")
        return 0
    with_agent = not args.no_agent
    if with_agent and not questions.can_ask_agent():
        with_agent = False
        sys.stderr.write("this pgtare has no command `findings`: the doctor alone is asked\n")
    results: list[Result] = []
    sys.stderr.write("starting the server\n")
    try:
        with stage(kind) as on:
            _play_all(on, chosen, with_agent, results)
    except KeyboardInterrupt:
        sys.stderr.write("ended early: what follows is what was measured\n")
    finally:
        if args.output:
            found = [asdict(one) for one in results]
            args.output.write_text(json.dumps(found, indent=1, default=str) + "\n")
    print("\n".join(sums(results)))
    return 1 if any(one.problem for one in results) or not results else 0


def _chosen(names: Sequence[str], kind: Kind) -> list[Case]:
    """The cases that this kind of server can have. Raises UsageError."""
    if unknown := sorted(set(names) - set(_BY_NAME)):
        raise UsageError(f"no case is called {', '.join(unknown)}: --list shows all")
    unfit = "no" if kind.standby else "only"
    fit = [one for one in CASES if one.standby != unfit and one.needs <= kind.libraries]
    chosen = [one for one in fit if not names or one.name in names]
    if missing := sorted(set(names) - {one.name for one in chosen}):
        raise UsageError(f"this kind of server cannot have {', '.join(missing)}")
    return chosen


def _play_all(on: Stage, cases: Sequence[Case], with_agent: bool, results: list[Result]) -> None:
    """Adds to results."""
    dsn = on.cluster.dsn(user="lookout")
    print(line("case", "doctor", "agent", "said first; note"), flush=True)
    with questions.agent(dsn, on.work) if with_agent else contextlib.nullcontext() as watcher:
        if watcher:
            time.sleep(_AGENT_KNOWS_S)
        began = time.monotonic()
        left_s = _FIRST_GUESS_S[with_agent] * len(cases)
        for number, case in enumerate(cases, 1):
            sys.stderr.write(f"{number} of {len(cases)}, {left_s / 60:.0f} min left: {case.name}\n")
            _play_one(on, case, dsn, watcher, results)
            left_s = (time.monotonic() - began) / number * (len(cases) - number)


def _play_one(
    on: Stage, case: Case, dsn: str, watcher: Agent | None, results: list[Result]
) -> None:
    result = Result(case.name, case.calm)
    try:
        _play(on, case, dsn, watcher, result)
    except (PgtareError, psycopg.Error, OSError, ValueError) as ex:
        said = " ".join(str(ex).split())[:150]
        result.problem = f"not staged: {type(ex).__name__}: {said}"
    finally:
        on.clear()
    results.append(result)
    print(table_line(result), flush=True)
    for title, names in result.cross.items():
        print(f"{'':22} also fits {', '.join(names)}: {title[:80]}", flush=True)


def _play(on: Stage, case: Case, dsn: str, watcher: Agent | None, result: Result) -> None:
    """One case: it begins, the doctor is asked, then the agent, and in between it is proved."""
    if case.prepare:
        case.prepare(on)
    before = on.ask(case.proof)
    earlier = watcher.ask(datetime.now(UTC)).findings if watcher else []
    since, began = datetime.now(UTC), time.monotonic()
    root = case.begin(on)
    seen = _proved(on, case, before, began + DOCTOR_S)
    time.sleep(max(0.0, began + DOCTOR_S - time.monotonic()))
    now = on.ask(case.proof)
    doctor = questions.ask_doctor(dsn)
    seen = _proved(on, case, now, time.monotonic() + _PROOF_S) and seen
    if not seen:
        result.problem = "not staged: its proof was not seen"
    answers = {"doctor": doctor}
    if watcher and seen:
        time.sleep(max(0.0, began + AGENT_S - time.monotonic()))
        asked = watcher.ask(since)
        new = questions.of_incident(asked.findings, earlier, since)
        answers["agent"] = Answer(new, asked.took_s, asked.error)
    result.said = answers
    causes = [(_family(one), one.cause) for one in CASES]
    for who, answer in answers.items():
        if not result.problem:
            verdict = judge(case.expected(root), answer.findings)
            if answer.error:
                verdict = Verdict(0, "error", note=f"{who} failed: {answer.error[:150]}")
            setattr(result, who, verdict)
        result.cross |= cross_matches(answer.findings, _family(case), causes)


def _proved(on: Stage, case: Case, before: Sequence[tuple[Any, ...]], deadline: float) -> bool:
    """Whether the proof of a case is seen by then."""
    first: Any = before[0][0] if before else None
    while True:
        rows = on.ask(case.proof)
        found: Any = rows[0][0] if rows else None
        if found is True:
            return True
        if isinstance(found, float) and found > (first or 0.0):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)


def _family(case: Case) -> str:
    return _FAMILIES.get(case.name, case.name)


def line(name: str, doctor: str, agent: str, said: str) -> str:
    return f"{name:22} {doctor:6} {agent:6} {said}"


def table_line(result: Result) -> str:
    """The line of one case: points, marks, what the doctor said first, and what to note."""

    def points(verdict: Verdict | None) -> str:
        return "–" if verdict is None else f"{verdict.score} {verdict.marks}".strip()

    first = result.doctor.first[:90] if result.doctor else ""
    said = "; ".join(one for one in (first, result.note) if one)
    return line(result.name, points(result.doctor), points(result.agent), said)


def sums(results: Sequence[Result]) -> list[str]:
    """Points of all incidents and of all calm cases."""
    kinds: tuple[tuple[str, Callable[[Result], bool]], ...] = (
        ("incidents", lambda one: not one.calm),
        ("calm", lambda one: one.calm),
        ("all", lambda one: True),
    )
    lines = []
    for name, belongs in kinds:
        some = [one for one in results if belongs(one) and not one.problem]
        told = []
        for who in ("doctor", "agent"):
            verdicts = [v for one in some if (v := getattr(one, who)) is not None]
            if verdicts:
                told.append(f"{who} {sum(v.score for v in verdicts)} of {2 * len(verdicts)}")
        lines.append(f"{name}: {', '.join(told) or 'nothing'}")
    if failed := [one.name for one in results if one.problem]:
        lines.append(f"not staged: {', '.join(failed)}")
    return lines
