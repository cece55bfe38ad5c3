"""A protocol of the ladder is one object: no other module asks which one it has."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import pgtare.weighing.ladder
from pgtare.weighing.ladder import protocol_registry
from pgtare.weighing.ladder.protocol import StudyProtocol
from pgtare.weighing.ladder.protocol_registry import PROTOCOLS
from tests.unit.simulated_study import study
from tests.unit.test_ladder_duet_analysis import TEXT

LADDER = Path(pgtare.weighing.ladder.__file__).parent
#: The modules of the protocols themselves, and the one that lists them.
OWN = {Path(inspect.getfile(type(one))) for one in PROTOCOLS.values()} | {
    Path(protocol_registry.__file__)
}
#: Values of a file, not questions.
VALUES = {
    "study_sections.py": [
        'ProtocolName = Literal["rounds", "duet"]',
        'kind: ProtocolName = "rounds"',
    ],
}


def questions(source: str) -> list[str]:
    """The lines that name a protocol by its string or its class."""
    classes = {type(one).__name__ for one in PROTOCOLS.values()}
    lines = source.splitlines()
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Constant(value=str(name)) if name in PROTOCOLS:
                found.add(lines[node.lineno - 1].strip())
            case ast.Name(id=name) | ast.alias(name=name) if name in classes:
                found.add(lines[node.lineno - 1].strip())
    return sorted(found)


@pytest.mark.parametrize(
    "path", sorted(set(LADDER.rglob("*.py")) - OWN), ids=lambda path: path.name
)
def test_no_module_asks_which_protocol_it_has(path: Path) -> None:
    assert questions(path.read_text(encoding="utf-8")) == VALUES.get(path.name, [])


@pytest.mark.parametrize(
    "question",
    [
        'if study.protocol_name(workload) == "duet": pass',
        'gather = {"rounds": 1}[name]',
        "if isinstance(protocol, Rounds): pass",
        "from pgtare.weighing.ladder.protocols.duet_rounds import DuetRounds",
    ],
)
def test_such_questions_are_seen(question: str) -> None:
    assert questions(question) == [question]


def test_every_protocol_is_whole() -> None:
    by_rounds = TEXT[TEXT.index("[[workload]]") :].replace('"duet"', '"rounds"')
    found = study(TEXT + by_rounds.replace('"W1"', '"W2"'))
    for name, protocol in PROTOCOLS.items():
        assert isinstance(protocol, StudyProtocol)
        assert protocol.name == name
        assert protocol.blocks(found) > 1
        steps = protocol.plan(found, 1)
        assert steps == protocol.plan(found, 1)
        assert {step.kind for step in steps} == {"run"}
        assert all(protocol.seconds(found, step) > 0 for step in steps)
        workload = found.the_workload(steps[0].workload)
        assert not protocol.gather(found, workload, []).kept
        assert protocol.layout(found)
        assert protocol.how(found.protocol.model_dump(), 4, "off").count("off") == 1
