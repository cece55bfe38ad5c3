"""Study files: what is read, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtare.errors import UsageError
from pgtare.ladder import study as studies
from pgtare.ladder.rounds import Rounds
from tests.unit.simulated_study import STUDY, study

SHIPPED = Path(__file__).parents[2] / "studies" / "wait_event_timing.toml"


def refused(text: str) -> str:
    with pytest.raises(UsageError) as found:
        studies.parse(text, "s.toml")
    return str(found.value)


def line(text: str, wanted: str) -> int:
    return next(i for i, got in enumerate(text.splitlines(), start=1) if wanted in got)


def test_the_shipped_study_is_sound() -> None:
    found, _ = studies.read(SHIPPED)
    assert [v.name for v in found.variant] == ["VAN", "STB", "OFF", "STA", "TRA"]
    assert [w.name for w in found.workload] == [f"W{i}" for i in range(1, 10)]
    assert all(w.profile for w in found.workload)
    assert studies.check_rounds(found, quick=False) is None
    assert {v.server for v in found.variant} == {"main"}  # one server binary
    for workload in found.workload:
        found.load_spec(workload, SHIPPED.parent, None)


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ('run = "1s"', 'run = "1s"\nruns = 3', "unknown key 'runs' in protocol"),
        ("rounds = 10", "rouns = 10", "unknown key 'rouns' in protocol (did you mean rounds"),
        ('name = "W1"', 'name = "W1"\nbulitin = "select-only"', "did you mean builtin"),
        ("at_least", "at_laest", "unknown key 'at_laest' in workload.profile"),
        ('run = "1s"', 'run = "1500ms"', "is no duration"),
        ('run = "1s"', 'run = "1.5s"', "pgbench runs whole seconds"),
        ('at_least = "80%"', "at_least = 0.8", "is no percentage"),
        ('floor = "off"', 'floor = "of"', "the floor names the variant 'of', which is absent"),
        ('arm = "trace"', 'arm = "tracer"', "names the variant 'tracer', which is absent (did"),
        ('arm = "trace"', 'arm = "off"', "off is compared with itself"),
        ('arm = "trace"', 'arm = "trace"\nworkloads = ["W2"]', "names the workload 'W2', which"),
        (
            '"trace"\n[[comparison]]',
            '"off"  # once more\n[[comparison]]',
            "there is already a variant 'off'",
        ),
        ('name = "trace"', 'name = "trace"\nserver = "other"', "names the server 'other'"),
    ],
)
def test_mistakes_are_told_with_their_line(right: str, wrong: str, told: str) -> None:
    text = STUDY.replace(right, wrong, 1)
    message = refused(text)
    assert told in message
    changed = next(row for row in reversed(wrong.splitlines()) if row != "[[comparison]]")
    assert message.startswith(f"s.toml, line {line(text, changed)}: "), message


def test_a_missing_key_and_broken_toml_are_told() -> None:
    assert "rounds is missing" in refused(STUDY.replace("rounds = 10\n", ""))
    assert refused("title = 'x'\nrounds = = 3\n").startswith("s.toml, line 2: invalid value")
    assert refused("title = ").startswith("s.toml, line 1: invalid value")


def test_too_few_rounds_are_refused_or_said_at_once() -> None:
    few = study(STUDY.replace("rounds = 10", "rounds = 5"))
    with pytest.raises(UsageError, match=r"0\.0625 at best.*set rounds = 7 or more"):
        studies.check_rounds(few, quick=False)
    told = studies.check_rounds(few, quick=True)
    assert told is not None
    assert "cannot settle anything" in told


def test_the_family_counts_every_declared_comparison() -> None:
    found, _ = studies.read(SHIPPED)
    assert found.family == 9 * 4
    assert found.made_quick().family == 4 * 4


def test_every_round_has_every_variant_once_in_an_order_of_its_own() -> None:
    found = study()
    steps = [step for step in Rounds().steps(found, 3) if step.kind == "run"]
    orders = [tuple(s.variant for s in steps if s.round == r) for r in range(1, 11)]
    assert all(sorted(o) == sorted(("off", "off again", "stats", "trace")) for o in orders)
    assert len(set(orders)) > 4
    assert Rounds().steps(found, 3) == Rounds().steps(found, 3)
    assert Rounds().steps(found, 3) != Rounds().steps(found, 4)


def test_each_place_in_a_round_is_as_likely() -> None:
    found = study()
    first = [
        next(s.variant for s in Rounds().steps(found, seed) if s.kind == "run" and s.position == 0)
        for seed in range(800)
    ]
    counts = [first.count(name) for name in found.in_a_round]
    assert all(150 < n < 250 for n in counts), counts  # 200 ± 12
