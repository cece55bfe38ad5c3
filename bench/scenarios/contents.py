"""The order of the table: each module of scenarios once."""

from bench.scenarios import ladder, rows, sliced, transactions, verdicts

ALL = (
    *transactions.SCENARIOS,
    *verdicts.SCENARIOS,
    *sliced.SCENARIOS,
    *ladder.SCENARIOS,
    *rows.SCENARIOS,
)
