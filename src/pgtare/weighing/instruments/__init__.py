"""What can be weighed: the catalogue of instruments, its arms, and proof that they ran."""
