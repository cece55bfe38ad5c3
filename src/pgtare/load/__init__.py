"""What drives the server: pgbench, its databases, and its rate."""

from pgtare.load.database import BenchDatabase, drop_database, initialise
from pgtare.load.headroom import Saturation, at_headroom, find_saturation
from pgtare.load.pgbench import PgbenchLoad, Progress, RunResult, find_pgbench, run
from pgtare.load.spec import LoadSpec, Script, parse_headroom, parse_participation, parse_rate
from pgtare.load.transactions import TransactionLog

__all__ = [
    "BenchDatabase",
    "LoadSpec",
    "PgbenchLoad",
    "Progress",
    "RunResult",
    "Saturation",
    "Script",
    "TransactionLog",
    "at_headroom",
    "drop_database",
    "find_pgbench",
    "find_saturation",
    "initialise",
    "parse_headroom",
    "parse_participation",
    "parse_rate",
    "run",
]
