"""What watching costs: the instruments, the weighing of transactions, the ladder of whole runs."""
