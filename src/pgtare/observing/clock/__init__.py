"""What a clock costs and whether it can be trusted, and what that means for PostgreSQL."""
