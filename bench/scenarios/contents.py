"""Lists all scenarios in the order of the table."""

from bench.scenarios import ladder, populations, rows, runs, sliced, verdicts

ALL = (
    *runs.SCENARIOS,
    *populations.SCENARIOS,
    *verdicts.SCENARIOS,
    *sliced.SCENARIOS,
    *ladder.SCENARIOS,
    *rows.SCENARIOS,
)
