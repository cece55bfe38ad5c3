"""A recording as one HTML file that needs nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pgtare
from pgtare.kit import files, numbers, page_frame
from pgtare.seeing.waits import recording as recordings
from pgtare.seeing.waits.charts import charts
from pgtare.seeing.waits.recording import OpenWait, RecordedSession, Recording
from pgtare.seeing.waits.summary import CPU, StatementSum, Summary, is_idle, summarise, throughout

_STATEMENTS = 30


def write_page(directory: Path, path: Path) -> Summary:
    """Sum up the recording in `directory` and write its page at `path`.

    Raises UsageError if it is no recording, PgtareError if it is damaged, MeasurementError
    if the page cannot be written.
    """
    found = summarise(recordings.load(directory), recordings.parts(directory))
    files.write_text(path, page(found))
    return found


def page(summary: Summary) -> str:
    """The page as a string."""
    recording = summary.recording
    drawn = charts(summary)
    began = f"{recording.started:%Y-%m-%d %H:%M:%S %Z}"
    return page_frame.render(
        "pgtare.seeing.waits",
        "recording.html.j2",
        drawn,
        title="Where the time went",
        subtitle=f"{numbers.seconds(recording.duration_s)} from {began}, "
        f"{len(recording.sessions)} traced sessions",
        alarms=alarms(summary),
        answers=answers(summary),
        statements=_statements(summary),
        sessions=_sessions(summary),
        version=pgtare.__version__,
        created=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S %Z}",
    )


def alarms(summary: Summary) -> list[str]:
    """What a reader must know before believing the figures."""
    recording = summary.recording
    notes = []
    if recording.lost:
        notes.append(
            f"{numbers.count(recording.lost)} records were overwritten before they were read: the "
            "sums are too low. Larger rings (wait_event_timing.trace_ring_records) lose less."
        )
    if recording.stopped_by == "space":
        notes.append("The recording ended early: the disk was full.")
    if recording.unwritten:
        note = recordings.unwritten_note(recording.unwritten)
        notes.append(f"The last seconds are missing: {note}.")
    if recording.stopped_by == "error":
        notes.append("The recording ended in an error: its last seconds are missing.")
    if any(session.refused for session in recording.sessions):
        notes.append("Some sessions could not be read for lack of privilege.")
    if any(session.gone for session in recording.sessions):
        notes.append("Some sessions ended and their rings were given up before the last was read.")
    if waited := throughout(recording):
        notes.append(
            f"{len(waited)} {'session' if len(waited) == 1 else 'sessions'} waited throughout and "
            "left no trace; what is shown of them comes from looking at the end: "
            + "; ".join(_waiting(wait, recording) for wait in waited[:5])
            + ("; …" if len(waited) > 5 else ".")
        )
    elif not recording.records:
        notes.append("Nothing was recorded: no session had wait_event_timing.capture = trace.")
    return notes


def _waiting(wait: OpenWait, recording: Recording) -> str:
    since = recording.duration_s + (recording.started - wait.started).total_seconds()
    blocked = f", blocked by {', '.join(map(str, wait.blocked_by))}" if wait.blocked_by else ""
    return f"process {wait.pid}, {numbers.seconds(since)} in {wait.type}/{wait.event}{blocked}"


def answers(summary: Summary) -> list[str]:
    """The main consumers of time, largest first."""
    seconds = max(summary.recording.duration_s, 1e-3)
    spent = {
        summary.label(event): s.total_ns
        for event, s in summary.events.items()
        if not is_idle(event)
    }
    if CPU in summary.active:
        spent[CPU] = float(summary.active[CPU].mean()) * seconds * 1e9
    total = sum(spent.values())
    sentences = [f"{total / 1e9 / seconds:.2f} sessions were active on average."] if total else []
    for name, ns in sorted(spent.items(), key=lambda item: -item[1])[:5]:
        if ns:
            sentences.append(
                f"{name}: {numbers.percent(100 * ns / total)} of active time, "
                f"{numbers.duration(ns / 1000)}."
            )
    return sentences


def _statements(summary: Summary) -> list[dict[str, object]]:
    """Statements by their time, each with what it waited for."""

    def time(item: tuple[int, StatementSum]) -> float:
        return item[1].cpu_ns + item[1].waited_ns

    ordered = sorted(summary.statements.items(), key=time, reverse=True)
    total = sum(time(item) for item in ordered) or 1.0
    return [
        {
            "text": summary.recording.texts.get(str(query_id), ""),
            "query_id": query_id,
            "runs": numbers.count(found.runs),
            "share": numbers.percent(100 * time((query_id, found)) / total),
            "waited": numbers.duration(found.waited_ns / 1000),
            "cpu": numbers.duration(found.cpu_ns / 1000),
            "events": [
                [
                    summary.label(event),
                    numbers.count(s.waits),
                    numbers.duration(s.total_ns / 1000),
                    numbers.duration(s.lengths_ns / s.waits / 1000 if s.waits else None),
                    numbers.duration(s.max_ns / 1000) + (", still waiting" if s.open else ""),
                ]
                for event, s in sorted(found.events.items(), key=lambda e: -e[1].total_ns)
            ],
        }
        for query_id, found in ordered[:_STATEMENTS]
        if time((query_id, found)) > 0
    ]


def _who(session: RecordedSession) -> str:
    name = f"{session.user or '?'}@{session.database or '?'} {session.application or ''}".strip()
    return name if session.leader_pid is None else f"worker of {session.leader_pid}, {name}"


def _sessions(summary: Summary) -> list[list[str]]:
    return [
        [
            str(session.pid),
            _who(session),
            numbers.count(session.records),
            numbers.count(session.lost),
        ]
        for session in summary.recording.sessions
    ]
