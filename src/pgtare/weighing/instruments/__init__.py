"""What can be weighed: the catalogue of instruments, its arms, and proof that they ran."""

from pgtare.weighing.instruments.arms import choose, combine, parse_arm
from pgtare.weighing.instruments.catalogue import Catalogue, load_catalogue
from pgtare.weighing.instruments.counters import Reading, Snapshot, snapshot
from pgtare.weighing.instruments.model import Chosen, Entry, FlagRule, Needs, SqlRule, Variant
from pgtare.weighing.instruments.proof import prove, proven
from pgtare.weighing.instruments.requirements import Missing, ServerFacts, availability, read_facts

__all__ = [
    "Catalogue",
    "Chosen",
    "Entry",
    "FlagRule",
    "Missing",
    "Needs",
    "Reading",
    "ServerFacts",
    "Snapshot",
    "SqlRule",
    "Variant",
    "availability",
    "choose",
    "combine",
    "load_catalogue",
    "parse_arm",
    "prove",
    "proven",
    "read_facts",
    "snapshot",
]
