"""Lists all scenarios in the order of the table."""

from bench.scenarios import ladder, rows, simulated, sliced, transactions, verdicts

ALL = (
    *transactions.SCENARIOS,
    *verdicts.SCENARIOS,
    *simulated.SCENARIOS,
    *sliced.SCENARIOS,
    *ladder.SCENARIOS,
    *rows.SCENARIOS,
)
