"""The JSON documents of `pgtare module` and of `pgtare uninstall`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

import pgtare
from pgtare.kit.document import Document, Model, schema_name
from pgtare.postgres.module_versions import ModuleVersions, mismatch
from pgtare.postgres.modules import Installed


class ModuleFiles(Model):
    """A module in an installation."""

    module: str = Field(description="its name, also that of its extension")
    version: str = Field(description="its version")
    outcome: Literal["installed", "unchanged", "replaced"] = Field(
        description="`installed`, `replaced`, or `unchanged` if the same files were there"
    )
    files: list[str] = Field(description="its files")
    package: str | None = Field(
        description="the package of the system that its library belongs to, and its version; "
        "`null`: none"
    )


class ModulesInstalled(Document):
    """What was put into an installation."""

    schema_: Literal["pgtare.module.installed/1"] = schema_name("pgtare.module.installed/1")
    server: str = Field(description="version of the installation, as `PostgreSQL 18.6`")
    modules: list[ModuleFiles] = Field(description="the modules, in the order of preloading")
    next: list[str] = Field(description="what to do next, step by step; empty with `--destdir`")


def installed(server: str, done: Iterable[Installed], steps: Sequence[str]) -> ModulesInstalled:
    """The document of an installation."""
    found = [
        ModuleFiles(
            module=one.module,
            version=one.version,
            outcome=one.outcome,
            files=[str(path) for path in one.files],
            package=None if one.package is None else str(one.package),
        )
        for one in done
    ]
    return ModulesInstalled(server=server, modules=found, next=list(steps))


class ModuleUninstalled(Document):
    """What was taken out of an installation."""

    schema_: Literal["pgtare.module.uninstalled/1"] = schema_name("pgtare.module.uninstalled/1")
    module: str = Field(description="its name")
    files: list[str] = Field(description="files that were removed")


def uninstalled(module: str, files: Iterable[Path]) -> ModuleUninstalled:
    """The document of a removal."""
    return ModuleUninstalled(module=module, files=[str(path) for path in files])


class ListedModule(Model):
    """The versions of a module."""

    module: str = Field(description="its name, also that of its extension")
    files: str | None = Field(description="of the installed files; `null`: there are none")
    path: str | None = Field(
        description="the file that a server of `--pg-config` loads; `null`: none, or a server was "
        "asked"
    )
    package: str | None = Field(
        description="the package of the system that this file belongs to, and its version; "
        "`null`: none"
    )
    library: str | None = Field(
        description="of the library that the server has loaded; `null`: none, or it does not tell"
    )
    preloaded: bool | None = Field(
        description="whether new sessions load the library; `null`: only files were looked at"
    )
    extension: str | None = Field(description="of the extension; `null`: the database has none")
    problem: str | None = Field(description="versions that do not go together; `null`: none")
    next: list[str] = Field(description="what to do about it, step by step")


class ModuleList(Document):
    """The versions of the command and of all modules."""

    schema_: Literal["pgtare.modules/1"] = schema_name("pgtare.modules/1")
    pgtare_version: str = Field(description="version of the command")
    database: str | None = Field(
        description="the database of `--dsn`; `null`: only files were looked at"
    )
    modules: list[ListedModule] = Field(description="the modules, in the order of preloading")


def listing(found: Iterable[ModuleVersions], database: str | None) -> ModuleList:
    """The document of a list. database: None if only files were looked at."""
    modules = []
    for one in found:
        wrong = None if database is None else mismatch(one)
        modules.append(
            ListedModule(
                module=one.module,
                files=one.files,
                path=None if one.path is None else str(one.path),
                package=None if one.package is None else str(one.package),
                library=one.library,
                preloaded=one.preloaded,
                extension=one.extension,
                problem=wrong.why if wrong else None,
                next=list(wrong.steps) if wrong else [],
            )
        )
    return ModuleList(pgtare_version=pgtare.__version__, database=database, modules=modules)


class LeftThing(Model):
    """Something that pgtare left on a machine or in a server."""

    what: str = Field(description="what it is, in words")
    outcome: Literal["found", "removed", "kept"] = Field(
        description="`removed`; `kept` because it is in use; `found` without `--yes`"
    )
    why: str = Field(description="why it was kept; else empty")


class Uninstalled(Document):
    """What pgtare left, and what became of it."""

    schema_: Literal["pgtare.uninstalled/1"] = schema_name("pgtare.uninstalled/1")
    things: list[LeftThing] = Field(description="what was found")
