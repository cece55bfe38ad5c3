"""Random requests over the wire, and what a trace of them must tell.

`model.py` has what a trace must tell, `statements.py` and `utilities.py` what is sent,
`transactions.py` and `client.py` send it and note what follows from the answers, `stopped.py` goes
up to a point within a request, `comparison.py` looks for differences, and `play.py` plays the
requests of a seed and finds the few of them that still make a difference.
"""
