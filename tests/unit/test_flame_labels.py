"""Which stretches of time are whose, by what a trace says."""

from __future__ import annotations

from pathlib import Path

from pgtare.observing.flame import labels
from pgtare.observing.trace.file.reader import Trace
from pgtare.observing.trace.file.records import CallKind
from tests.unit.made_traces import BEGAN_NS, MS, session_stream, trace


def test_a_portal_has_the_time_in_which_it_worked(tmp_path: Path) -> None:
    """It is open for 60 ms: another statement runs before it is fetched from again."""
    b = session_stream()
    b.text(1, "SELECT of_a_portal")
    b.text(2, "SELECT another")
    b.call(CallKind.EXECUTE, 30 * MS, 31 * MS, call=2, text=2)
    b.call(CallKind.FETCH, 40 * MS, 45 * MS, call=3, text=1, execution=1)
    b.call(CallKind.EXECUTE, 0, 60 * MS, call=1, text=1, busy=10 * MS)
    b.request(0, 61 * MS)
    found = labels.FrameLabels()
    labels._fill(found, Trace(tmp_path), trace(tmp_path / "t.pgtrace", b.data))
    _, statements = found.spans
    stretches = [
        (found.names[which], (begin - BEGAN_NS) // MS, (end - BEGAN_NS) // MS)
        for _, begin, end, which in statements.tolist()
    ]
    assert sorted(stretches) == [
        ("statement: SELECT another", 30, 31),
        ("statement: SELECT of_a_portal", 0, 10),
        ("statement: SELECT of_a_portal", 40, 45),
    ]
