"""The order of the table: each module of scenarios once."""

from bench.scenarios import ladder, rows, simulated, sliced, transactions, verdicts

ALL = (
    *transactions.SCENARIOS,
    *verdicts.SCENARIOS,
    *simulated.SCENARIOS,
    *sliced.SCENARIOS,
    *ladder.SCENARIOS,
    *rows.SCENARIOS,
)
