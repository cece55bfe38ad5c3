"""One module for each protocol of the ladder; `protocol_registry.py` finds what is here."""
