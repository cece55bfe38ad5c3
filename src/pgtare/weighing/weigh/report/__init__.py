"""The report of a weighing: on the terminal, and as one self-contained page."""
