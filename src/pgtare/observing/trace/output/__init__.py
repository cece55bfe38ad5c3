"""A trace as tables, pages and files for other tools."""
