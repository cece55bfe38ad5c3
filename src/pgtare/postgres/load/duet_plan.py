"""The plan of a duet run, as the driver reads it (driver/plan.c)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from pgtare.errors import UsageError
from pgtare.postgres.load.script import (
    BUILTINS,
    Assignment,
    Program,
    Statement,
    Variable,
    compile_script,
)
from pgtare.postgres.load.spec import LoadSpec
from pgtare.postgres.own_session import UNREADABLE

MAX_CLUSTERS = 16
MAX_THREADS = 1024
NS = 1_000_000_000
CLIENT = "client_id"  # as in pgbench: the number of the thread


@dataclass(frozen=True)
class Length:
    """How long a run lasts, in seconds.

    drain_s: how long transactions still under way at the end may take to be answered.
    """

    duration_s: float
    warmup_s: float = 0.0
    drain_s: float = 5.0

    def __post_init__(self) -> None:
        if not (0 < self.duration_s < 1e6 and 0 <= self.warmup_s < 1e6 and 0 <= self.drain_s < 1e6):
            raise UsageError("a duet run lasts over 0 s, its warm-up and its end 0 s or more")

    @property
    def total_s(self) -> float:
        """All of it, at most."""
        return self.warmup_s + self.duration_s + self.drain_s


def render_plan(
    targets: Sequence[str],
    spec: LoadSpec,
    length: Length,
    output: Path,
    variables: Mapping[str, int],
    application_name: str,
) -> bytes:
    """The plan's text. spec.clients are threads, each with one connection to every target.

    spec.rate: transactions a second that *each* target gets, over all clients. Raises UsageError
    for what a duet cannot run.
    """
    if not 1 <= len(targets) <= MAX_CLUSTERS:
        raise UsageError(f"a duet takes 1 to {MAX_CLUSTERS} clusters, not {len(targets)}")
    if spec.clients > MAX_THREADS:
        raise UsageError(f"a duet takes at most {MAX_THREADS} clients, not {spec.clients}")
    known = {**variables, CLIENT: 0}
    programs = compile_load(spec, known)
    names = {name: number for number, name in enumerate(_names(programs, known))}
    out = [
        b"duet-plan-1",
        b"output " + _counted(str(output)),
        f"seed {spec.seed}".encode(),
        f"threads {spec.clients}".encode(),
        f"cycles_per_1000_s {_rate(spec)}".encode(),
        f"warmup_ns {round(length.warmup_s * NS)}".encode(),
        f"duration_ns {round(length.duration_s * NS)}".encode(),
        f"drain_ns {round(length.drain_s * NS)}".encode(),
        f"protocol {spec.protocol}".encode(),
        f"clusters {len(targets)}".encode(),
        *(_counted(_conninfo(target, application_name)) for target in targets),
    ]
    values = " ".join(str(known.get(name, 0)) for name in names)
    out.append(f"variables {len(names)} {values}".encode())
    out.append(f"client_variable {names[CLIENT]}".encode())
    out.append(f"scripts {len(programs)}".encode())
    for program, weight in programs:
        out.append(f"script {weight} {len(program.commands)}".encode())
        out += [_command(command, names) for command in program.commands]
    out.append(b"end\n")
    return b"\n".join(out)


def compile_load(spec: LoadSpec, known: Mapping[str, int]) -> list[tuple[Program, int]]:
    """The load's scripts and their weights. Raises UsageError if one cannot be run."""
    if not spec.scripts:
        return [(compile_script(BUILTINS[spec.builtin], spec.builtin, known), 1)]
    programs = []
    for script in spec.scripts:
        try:
            text = script.path.read_text()
        except (OSError, UnicodeDecodeError) as ex:
            raise UsageError(f"cannot read pgbench script {script.path}: {ex}") from ex
        programs.append((compile_script(text, str(script.path), known), script.weight))
    return programs


def _rate(spec: LoadSpec) -> int:
    if spec.rate is None:
        return 0
    rate = round(spec.rate * 1000)
    if rate < 1:
        raise UsageError("the rate of a duet must be at least one transaction in 1000 s")
    return rate


def _names(programs: Sequence[tuple[Program, int]], known: Mapping[str, int]) -> list[str]:
    assigned = {
        command.variable: None
        for program, _ in programs
        for command in program.commands
        if isinstance(command, Assignment)
    }
    return list({**dict.fromkeys(known), **assigned})


def _command(command: Assignment | Statement, names: Mapping[str, int]) -> bytes:
    if isinstance(command, Assignment):
        steps = [
            f"{step.kind} {names[step.operand] if isinstance(step.operand, str) else step.operand}"
            if step.operand is not None
            else step.kind
            for step in command.operations
        ]
        return f"set {names[command.variable]} {len(steps)} {' '.join(steps)}".encode()
    parts = [
        f"value {names[part.name]}".encode()
        if isinstance(part, Variable)
        else b"text " + _counted(part)
        for part in command.parts
    ]
    return b"\n".join([f"statement {len(parts)}".encode(), *parts])


def _counted(text: str) -> bytes:
    data = text.encode()
    if b"\0" in data:
        raise UsageError("a null byte cannot be part of a script or a connection string")
    return f"{len(data)} ".encode() + data


def _conninfo(target: str, application_name: str) -> str:
    try:
        return make_conninfo(target, application_name=application_name)
    except psycopg.ProgrammingError as ex:
        raise UsageError(UNREADABLE) from ex
