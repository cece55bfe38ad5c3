"""Whether a value is the one that a server shows, however somebody has spelled it."""

from __future__ import annotations

import pytest

from pgtare.weighing.whole_server.setting_values import SettingNow

WORDS = ("off", "pglz", "lz4")


def now(kind: str, value: str, unit: str = "") -> SettingNow:
    return SettingNow("x", kind, "sighup", WORDS if kind == "enum" else (), value, unit)


@pytest.mark.parametrize(
    ("setting", "same", "other"),
    [
        (now("integer", "60000", "ms"), ["60000", "60s", "1min", "1 min", "60000ms"], ["60", "1s"]),
        (now("integer", "1024", "8kB"), ["1024", "8MB", "8192kB", "8192 kB"], ["8kB", "1024kB"]),
        (now("integer", "5120", "kB"), ["5MB", "5 MB", "5242880B"], ["5kB", "5GB"]),
        (now("integer", "1", "h"), ["1h", "60min", "3600s"], ["1min"]),
        (now("real", "1.1"), ["1.1", "1.10", "11e-1"], ["1.2"]),
        (now("integer", "-1", "ms"), ["-1"], ["0", "1"]),
        (now("bool", "on"), ["on", "TRUE", "yes", "1"], ["off", "false", "0"]),
        (now("bool", "off"), ["off", "no"], ["on"]),
        (now("enum", "pglz"), ["pglz", "PGLZ"], ["off", "lz4"]),
        (now("string", "a, b"), ["a,b", "a, b", "b,a", "A,b"], ["a", "a,c"]),
    ],
    ids=lambda one: f"{one.kind} {one.value}{one.unit}" if isinstance(one, SettingNow) else "",
)
def test_a_value_is_told_from_its_spelling(
    setting: SettingNow, same: list[str], other: list[str]
) -> None:
    assert [text for text in same if not setting.is_value(text)] == []
    assert [text for text in other if setting.is_value(text)] == []


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        (now("bool", "on"), "t"),
        (now("enum", "pglz"), "on"),  # the server takes it for one of its words
        (now("integer", "5120", "kB"), "5s"),
        (now("integer", "5120", "kB"), "lots"),
        (now("integer", "5", "ms"), "5mb"),
        (now("real", "1.1"), "1.1ms"),
    ],
)
def test_what_cannot_be_compared_is_no_value(setting: SettingNow, text: str) -> None:
    assert not setting.has(text)
