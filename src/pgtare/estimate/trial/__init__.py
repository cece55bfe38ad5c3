"""Estimators of a trial by runs or slices inside one server."""
