"""A class name has one meaning in the whole tree: no two modules of src define the same one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pgtare

SRC = Path(pgtare.__file__).parent

#: Modules of JSON documents.
DOCUMENTS = {"documents", "schema"}

#: Names that several modules define, and why they may. Nothing may be added without a reason.
ALLOWED = {
    # an estimate, and the part of the result document that has its figures
    "Effect": "estimate and documents",
    # a command's own form of what another has, never imported together
    "Display": "progress of a command, each built on kit.progress",
    "Row": "a row of a table on the page",
    "Reader": "of perf's output, of the views of waits",
    "Snapshot": "counters at one moment",
    # words of PostgreSQL or of statistics, each used within one room
    "Answer": "of a trial, and of a query of the spool",
    "Clock": "of the machine, as predicted, and as a server reads it",
    "Event": "of perf, of a trace, of waits",
    "Process": "of a trace, of the machine",
    "Program": "a script that is compiled, a binary with symbols",
    "Rate": "an error rate, and that of an open loop",
    "Server": "as the doctor sees it, as a trace does, and in a study file",
    "Session": "of a server, by the room that looks at it",
    "Statement": "of a script, of a trace, of the views of waits",
    "Variant": "of an instrument, and of a study",
    "Waits": "as the doctor sees them, and in a trace",
    "Comparison": "of an arm with the base, and of two variants in a study file",
}


def defined_twice() -> dict[str, list[str]]:
    """Public classes by name, with the modules that define them, if there is more than one.

    A model of a JSON document may have the name of what it shows: those modules are left out.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SRC.rglob("*.py")):
        if path.stem in DOCUMENTS:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(SRC)))
    return {name: modules for name, modules in found.items() if len(modules) > 1}


def test_no_new_class_takes_a_name_that_is_taken_and_no_exception_outlives_its_reason() -> None:
    twice = defined_twice()
    assert {name: twice[name] for name in twice.keys() - ALLOWED.keys()} == {}
    assert sorted(ALLOWED.keys() - twice.keys()) == []
