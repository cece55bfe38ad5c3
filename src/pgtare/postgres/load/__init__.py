"""What drives the server: pgbench, its databases, and its rate."""

from pgtare.postgres.load.database import BenchDatabase, drop_database, initialise
from pgtare.postgres.load.headroom import Saturation, find_saturation
from pgtare.postgres.load.pgbench import PgbenchLoad, Progress, RunResult, find_pgbench, run
from pgtare.postgres.load.spec import LoadSpec, Script, parse_rate
from pgtare.postgres.load.transactions import TransactionLog

__all__ = [
    "BenchDatabase",
    "LoadSpec",
    "PgbenchLoad",
    "Progress",
    "RunResult",
    "Saturation",
    "Script",
    "TransactionLog",
    "drop_database",
    "find_pgbench",
    "find_saturation",
    "initialise",
    "parse_rate",
    "run",
]
