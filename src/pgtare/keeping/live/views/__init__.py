"""The views of the page: each asks its queries, and gives charts and tables."""
