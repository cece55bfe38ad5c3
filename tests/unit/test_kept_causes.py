"""Every cause for which the server keeps a trace has its words wherever it is shown."""

import re
from pathlib import Path

from pgtare.observing.trace import documents
from pgtare.observing.trace.output import show_kept

TRIGGER = Path(__file__).parents[2] / "server/sql_trace/core/trigger.c"


def test_every_cause_has_words() -> None:
    body = TRIGGER.read_text().partition("trigger_cause_name(KeptCause cause)\n{")[2]
    causes = set(re.findall(r'"(\w+)"', body.partition("};")[0]))
    assert "slower_than_usual" in causes
    assert causes == set(show_kept._FIRED)
    told = documents.KeptTrace.model_fields["cause"].description or ""
    assert causes == set(re.findall(r"`(\w+)`", told))
