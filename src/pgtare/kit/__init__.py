"""Results as a terminal table, as JSON and as one self-contained page."""
