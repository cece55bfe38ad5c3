"""Writes the source of a server module that a test makes up."""

from pathlib import Path

_MAKEFILE = """
MODULE_big = {name}
OBJS = {name}.o
EXTENSION = {name}
DATA = {name}--1.0.sql
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)
override CFLAGS := $(filter-out -Wmissing-variable-declarations,$(CFLAGS))
"""
_CONTROL = "default_version = '1.0'\nmodule_pathname = '$libdir/{name}'\n"


def write_module(
    root: Path, name: str, code: str, control: str = "", script: str = "SELECT 1;\n"
) -> Path:
    """Version 1.0 of a module of one C file, laid out below root as the project's own sources are.

    control: lines of its control file beyond the version and the library. script: what CREATE
    EXTENSION runs.
    """
    (root / "common").mkdir(parents=True)
    (root / name).mkdir()
    for file, text in {
        "Makefile": _MAKEFILE.format(name=name),
        f"{name}.c": code,
        f"{name}.control": _CONTROL.format(name=name) + control,
        f"{name}--1.0.sql": script,
    }.items():
        (root / name / file).write_text(text)
    return root
