"""What can be weighed: the catalogue of instruments, its arms, and proof that they ran."""

from pgtare.instruments.arms import choose, combine, parse_arm
from pgtare.instruments.catalogue import Catalogue, load_catalogue
from pgtare.instruments.counters import Reading, Snapshot, snapshot
from pgtare.instruments.facts import Missing, ServerFacts, availability, read_facts
from pgtare.instruments.model import Chosen, Entry, FlagRule, Needs, SqlRule, Variant
from pgtare.instruments.proof import prove

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
    "read_facts",
    "snapshot",
]
