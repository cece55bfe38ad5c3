"""What watching costs, added up: in cores and in money, by server and instrument."""
