"""What a careful operator asks before loading the modules: every proof of harmlessness, in a row.

Each part is a command of this project, run one after the other; what it prints is kept in a
directory. A part that passed at this commit is not run again, so a gate that was interrupted goes
on where it was. The page `index.html` has the outcome of every part, what it printed last, and the
series of the soak. What the default suite and `make test-slow` prove besides is not in it.

    python -m bench gate                     all parts: some eleven hours
    python -m bench gate soak --scale 0.1    one part, a tenth as long
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pgtare
from bench.harness import say
from pgtare.errors import UsageError
from pgtare.kit import numbers, page_frame, plots
from pgtare.kit.chart import Chart
from pgtare.postgres.signals import asked_to_stop

TAKES = "eleven hours (--scale, and the parts that are named)"

_LAST_LINES = 40
_ROOT = Path(__file__).resolve().parents[1]
_PYTEST = ("pytest", "-q", "-p", "no:cacheprovider", "-m", "not source")


@dataclass(frozen=True)
class Part:
    """One proof. words: after `python -m`; {time} becomes its time, which --scale changes."""

    name: str
    line: str
    words: tuple[str, ...]
    time: float = 0.0

    def command(self, scale: float, directory: Path) -> list[str]:
        """What is run."""
        values = {"time": f"{self.time * scale:g}", "directory": directory}
        return [sys.executable, "-m", *(word.format(**values) for word in self.words)]


PARTS = (
    Part(
        "soak",
        "nothing grows: 64 clients, every module, recorder and agent on, no kills",
        ("bench", "soak", "--minutes", "{time}", "--out", "{directory}/soak.series.json"),
        180,
    ),
    Part(
        "storm",
        "nothing breaks: all is killed, settings are flipped, a standby is promoted",
        ("bench", "storm", "--minutes", "{time}"),
        60,
    ),
    Part(
        "suites",
        "PostgreSQL's own regression and isolation suites pass with everything on",
        ("tests.versions.regression",),
    ),
    Part(
        "sanitizer",
        "the C of the modules does nothing that C leaves undefined (UBSan)",
        (*_PYTEST, "tests/server/test_undefined_behaviour.py"),
    ),
    Part(
        "neighbours",
        "other extensions before and after ours in the preload list",
        (
            *_PYTEST,
            "tests/server/test_waits_neighbours.py",
            "tests/server/test_sql_trace_neighbours.py",
            "tests/server/test_row_sources_neighbours.py",
        ),
    ),
    Part(
        "places",
        "small /dev/shm, full disk, denied mprotect, clock steps, poolers, standbys",
        (
            *_PYTEST,
            "tests/server/test_ring_memory.py",
            "tests/server/test_sql_trace_memory.py",
            "tests/server/test_module_protection.py",
            "tests/server/test_trace_faults.py",
            "tests/server/test_waits_faults.py",
            "tests/server/test_recorder_faults.py",
            "tests/server/test_agent_faults.py",
            "tests/server/test_pooler.py",
            "tests/server/test_doctor_standby.py",
        ),
    ),
    Part(
        "fuzz",
        "readers of traces survive whatever a file can hold",
        ("tests.unit.fuzz_trace", "{time}"),
        900,
    ),
    Part(
        "functions",
        "the server goes on, whatever roles pass to the modules' SQL functions",
        ("bench", "functions", "--minutes", "{time}"),
        15,
    ),
    Part(
        "secrets",
        "secrets and privileges: no trace, log or page shows what it must not",
        (*_PYTEST, "tests/server/test_secrets.py", "tests/server/test_module_delegated.py"),
    ),
    Part(
        "requests",
        "an hour of random requests is traced as the client knows it",
        ("bench", "requests", "--minutes", "{time}"),
        60,
    ),
    Part(
        "day",
        "a day of findings in time-lapse, and none lost or doubled",
        ("bench", "findings_day"),
    ),
    Part(
        "hostile",
        "an agent and a page beside hostile neighbours for an hour",
        ("bench", "hostile_hour", "--minutes", "{time}"),
        60,
    ),
)


@dataclass(frozen=True)
class Outcome:
    """How a part ended, as the directory keeps it."""

    name: str
    commit: str
    scale: float
    status: int
    seconds: float

    def proves(self, commit: str, scale: float) -> bool:
        """Whether there is no need to run it again. What was changed since is in no commit."""
        same = (self.commit, self.scale) == (commit, scale) and not commit.endswith("-dirty")
        return same and self.status == 0


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(one.name for one in PARTS)}")
    parser.add_argument("--directory", type=Path, default=Path("gate"), help="where it is kept")
    parser.add_argument("--scale", type=float, default=1.0, help="times of parts, as a share")


def main(args: argparse.Namespace) -> int:
    """Run what has not passed yet, and write the page; 1 unless all that was asked for passed."""
    wanted = {one.name for one in PARTS} if not args.parts else set(args.parts)
    unknown = sorted(wanted - {one.name for one in PARTS})
    if unknown:
        raise UsageError(f"no part is called {', '.join(unknown)}: --help lists them")
    args.directory.mkdir(parents=True, exist_ok=True)
    commit = _commit()
    for part in PARTS:
        if part.name not in wanted:
            continue
        before = kept(args.directory, part)
        if before is not None and before.proves(commit, args.scale):
            say(f"{part.name}: passed already at {commit}")
            continue
        if not _run(part, args.directory, args.scale, commit):
            say("stopped; the same command goes on with this part")
            return 1
        write_page(args.directory)
    found = [kept(args.directory, part) for part in PARTS if part.name in wanted]
    say(f"{args.directory / 'index.html'} has the outcome of each part")
    return int(any(one is None or one.status for one in found))


def _commit() -> str:
    """Which sources these are; with what was changed since."""
    words = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() or pgtare.__version__


def _run(part: Part, directory: Path, scale: float, commit: str) -> bool:
    """Run a part to its end, and keep the outcome; False if it was stopped."""
    say(f"{part.name}: {part.line}")
    began = time.monotonic()
    for old in directory.glob(f"{part.name}.*"):
        old.unlink()
    log = directory / f"{part.name}.log"
    with asked_to_stop() as stop, log.open("wb") as output:
        status = subprocess.Popen(
            part.command(scale, directory.absolute()),
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        ).wait()
    if stop.made:
        return False
    if part.words[0] == "pytest" and not re.search(r"\d+ passed", _last(_text(log))):
        status = status or 1  # all of it was skipped
    outcome = Outcome(part.name, commit, scale, status, time.monotonic() - began)
    (directory / f"{part.name}.json").write_text(json.dumps(asdict(outcome)))
    say(f"{part.name}: {'passed' if status == 0 else f'failed ({status})'}")
    return True


def kept(directory: Path, part: Part) -> Outcome | None:
    """How a part ended; None if it was not run."""
    path = directory / f"{part.name}.json"
    return Outcome(**json.loads(path.read_text())) if path.exists() else None


def write_page(directory: Path) -> Path:
    """The page of all that the directory has. Returns its path."""
    shown = []
    for part in PARTS:
        outcome = kept(directory, part)
        said = "" if outcome is None else _last(_text(directory / f"{part.name}.log"))
        scale = 1.0 if outcome is None else outcome.scale
        shown.append(
            {
                "name": part.name,
                "line": part.line,
                "outcome": _outcome(part, outcome, said),
                "took": "" if outcome is None else numbers.seconds(outcome.seconds),
                "command": shlex.join(["python", *part.command(scale, directory)[1:]]),
                "said": said,
            }
        )
    soak = directory / "soak.series.json"
    text = page_frame.render(
        "bench",
        "gate.html.j2",
        charts(json.loads(soak.read_text())) if soak.exists() else [],
        title="The gate",
        subtitle="proofs that pgtare does no harm, and how each ended",
        version=pgtare.__version__,
        created=time.strftime("%Y-%m-%d %H:%M"),
        parts=shown,
    )
    path = directory / "index.html"
    path.write_text(text, encoding="utf-8")
    return path


def _outcome(part: Part, outcome: Outcome | None, said: str) -> str:
    if outcome is None:
        return "not run"
    ended = "passed" if outcome.status == 0 else f"failed ({outcome.status})"
    skipped = re.search(r"(\d+) skipped", said)
    words = [f"{ended} at {outcome.commit}", *([f"{skipped[1]} skipped"] if skipped else [])]
    if part.time and outcome.scale != 1:
        words.append(f"{outcome.scale:g} of its time")
    return ", ".join(words)


def _text(log: Path) -> str:
    return log.read_text(errors="replace")


def _last(text: str) -> str:
    return "\n".join(text.splitlines()[-_LAST_LINES:])


def charts(soak: dict[str, Any]) -> list[Chart]:
    """A chart for each series of a soak."""
    rows: Sequence[Sequence[float]] = soak["values"]
    return [
        _chart(number, series, soak["minutes"], [row[number] for row in rows])
        for number, series in enumerate(soak["series"])
    ]


def _chart(
    number: int, series: dict[str, Any], minutes: Sequence[float], values: Sequence[float]
) -> Chart:
    layout = plots.frame(220)
    layout["showlegend"] = False
    layout["xaxis"] |= {"title": plots.axis_title("minutes")}
    layout["yaxis"] |= {"title": plots.axis_title(series["unit"]), "rangemode": "tozero"}
    ends = f"{values[0]:,.0f} at the start, {values[-1]:,.0f} at the end"
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": [round(minute, 2) for minute in minutes],
        "y": list(values),
        "line": {"color": "c1"},
    }
    every = max(1, len(minutes) // 12)
    pairs = list(zip(minutes, values, strict=True))[::every]
    return Chart(
        id=f"soak{number}",
        title=f"{series['name']}{', ' + series['unit'] if series['unit'] else ''}",
        label=f"{series['name']} over time: {ends}",
        caption=f"{ends}.",
        height=220,
        data=[line],
        layout=layout,
        table_head=["minute", series["name"]],
        table_rows=[[f"{minute:.0f}", f"{value:,.0f}"] for minute, value in pairs],
    )
