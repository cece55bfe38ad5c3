"""Scores of what was said about a case: was it the cause, with its root, and did it come first.

2: the first finding has the right cause and names its root. 1: the cause without its root, or not
first. 0: missing, or something else. If nothing is wrong, silence and what is only `info` score 2,
a warning 1, and something critical 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Finding = Mapping[str, Any]

#: Fields that explain in general or judge: their words fit many causes. `check` is a mere label,
#: and whoever is listed among those that wait is not named as a root.
NOT_EVIDENCE = frozenset({"why", "remedy", "because", "sure", "level", "check", "victims"})
#: Levels that alarm nobody.
HARMLESS = frozenset({"info", "ok"})


@dataclass(frozen=True)
class Expected:
    """Patterns (case is ignored) of the right finding; an empty one asks for nothing.

    also: what else is worth saying, such as a second root. calm: nothing should be said.
    """

    cause: str = ""
    root: str = ""
    remedy: str = ""
    also: str = ""
    calm: bool = False


@dataclass(frozen=True)
class Verdict:
    """first: what was said first. marks: of the best finding, C cause, R root, M remedy, A also."""

    score: int
    first: str
    marks: str = ""
    note: str = ""


def texts(value: Any, without: frozenset[str] = frozenset()) -> str:
    """All that a finding says, a line each, `name: value`; fields in `without` are left out."""
    if isinstance(value, Mapping):
        inner = ((name, texts(one, without)) for name, one in value.items() if name not in without)
        return "\n".join(f"{name}: {text}" for name, text in inner if text)
    if isinstance(value, (list, tuple)):
        return "\n".join(texts(one, without) for one in value)
    return "" if value is None else str(value)


def fits(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE | re.DOTALL) is not None


def title(finding: Finding) -> str:
    return str(finding.get("title") or finding.get("key") or texts(finding))[:150]


def marks(expected: Expected, finding: Finding) -> str:
    """Which patterns fit; those that are empty are not marked."""
    evidence, remedy = texts(finding, NOT_EVIDENCE), texts(finding.get("remedy"))
    found = (
        ("C", expected.cause, evidence),
        ("R", expected.root, evidence),
        ("M", expected.remedy, remedy),
        ("A", expected.also, texts(finding)),
    )
    return "".join(letter for letter, pattern, text in found if pattern and fits(pattern, text))


def judge(expected: Expected, findings: Sequence[Finding]) -> Verdict:
    """findings: in the order in which they were said."""
    if expected.calm:
        return _judge_silence(findings)
    if not findings:
        return Verdict(0, "nothing", note="nothing was said")
    first, marked = title(findings[0]), [marks(expected, one) for one in findings]
    needed = {"C", "R"} if expected.root else {"C"}
    whole = [number for number, found in enumerate(marked) if needed <= set(found)]
    if whole and whole[0] == 0:
        wanted = (("M", "remedy", expected.remedy), ("A", "rest", expected.also))
        missing = [word for letter, word, pattern in wanted if pattern and letter not in marked[0]]
        return Verdict(2, first, marked[0], f"{' and '.join(missing)} missing" if missing else "")
    if whole:
        right = whole[0]
        return Verdict(1, first, marked[right], f"number {right + 1}: {title(findings[right])}")
    partly = [number for number, found in enumerate(marked) if "C" in found]
    if partly:
        place = f", number {partly[0] + 1}" if partly[0] else ""
        return Verdict(1, first, marked[partly[0]], f"root not named{place}")
    return Verdict(0, first, marked[0], "something else was said")


def _judge_silence(findings: Sequence[Finding]) -> Verdict:
    levels = {str(one.get("level") or "warning").lower(): one for one in reversed(findings)}
    for level, score in (("critical", 0), ("warning", 1)):
        if level in levels:
            return Verdict(score, title(levels[level]), note=f"false alarm ({level})")
    return Verdict(2, title(findings[0]) if findings else "nothing", note="rightly quiet")


def cross_matches(
    findings: Iterable[Finding], own: str, causes: Iterable[tuple[str, str]]
) -> dict[str, list[str]]:
    """Titles of findings whose evidence fits the causes of more than one other family, with these.

    own: the family of the case that was staged. causes: family and pattern of each case.
    """
    patterns = [(family, pattern) for family, pattern in causes if pattern and family != own]
    found = {}
    for one in findings:
        evidence = texts(one, NOT_EVIDENCE)
        families = sorted({family for family, pattern in patterns if fits(pattern, evidence)})
        if len(families) > 1:
            found[title(one)] = families
    return found
