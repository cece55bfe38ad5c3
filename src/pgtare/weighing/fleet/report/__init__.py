"""A fleet's result for people: on a terminal and as a page."""
