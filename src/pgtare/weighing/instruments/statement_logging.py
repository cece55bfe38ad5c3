"""Which settings let statements write to the server's log."""

from __future__ import annotations

import re

#: Settings with which the log has a line of each statement: at 0, and if they are on.
_AT_ZERO = (
    "auto_explain.log_min_duration",
    "log_min_duration_sample",
    "log_min_duration_statement",
)
_IF_ON = ("log_duration",)
#: What writes many lines for a statement, without a limit, if it is on.
VERBOSE = (
    "debug_print_parse",
    "debug_print_plan",
    "debug_print_raw_parse",
    "debug_print_rewritten",
    "log_executor_stats",
    "log_parser_stats",
    "log_planner_stats",
    "log_statement_stats",
    "trace_sort",
)
#: All settings that decide whether a statement is logged.
NAMES = frozenset(
    {
        *_AT_ZERO,
        *_IF_ON,
        *VERBOSE,
        "log_min_messages",
        "log_statement",
        "log_transaction_sample_rate",
        "pgaudit.log",
    }
)
_ZERO = re.compile(r"\s*0+(\.0*)?\s*(us|ms|s|min|h|d)?\s*")


def logs(name: str, value: str) -> bool:
    """Whether a setting, as it is written, lets each statement, or a sample of them, be logged."""
    word = value.strip().lower()
    if name in _AT_ZERO:
        return _ZERO.fullmatch(value) is not None
    if name in _IF_ON or name in VERBOSE:
        return word not in ("off", "false", "no", "0")
    if name == "log_transaction_sample_rate":
        return _ZERO.fullmatch(value) is None
    if name == "pgaudit.log":
        return word != "none"
    if name == "log_min_messages":
        return "debug" in word
    return name == "log_statement" and word in ("all", "mod")
