"""Compile the clock probe while the package is built or installed; add what is in C, and plotly.js.

If PGTARE_PREBUILT names a directory, its files go into the package: the server modules built for
the bundled PostgreSQL (packaging/pypi/wheel.py).
"""

import importlib.util
import os
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = "pgtare/_csrc"
#: What of them is source: builds in a checkout leave more behind.
KINDS = (".c", ".h", ".sql", ".control", ".sh", ".mk", "")


class ProbeHook(BuildHookInterface):  # type: ignore[type-arg]
    """Puts what is in C into the package; without a compiler pgtare is installed without the probe.

    The probe lies next to the Python code that uses it, the sources in a folder of their own.
    """

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel is built, an editable one too."""
        root = Path(self.root)
        if version == "standard":  # an editable one finds them in the checkout
            _add(root / "server", SOURCES, build_data, only=KINDS)
            _add_plotly(build_data)
            if prebuilt := os.environ.get("PGTARE_PREBUILT"):
                _add(Path(prebuilt), "pgtare/_prebuilt", build_data)
        clock = Path("src", "pgtare", "observing", "clock")
        build = _load(root / clock / "build.py")
        target = root / clock / build.LIBRARY
        try:
            build.compile_probe(root / "server", target)
        except build.BuildError as ex:
            target.unlink(missing_ok=True)
            self.app.display_warning(f"{ex}; `pgtare clock` will need it, the rest works without")
            return
        build_data["pure_python"] = False
        build_data["tag"] = (
            f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        )
        build_data["artifacts"].append(str(clock / build.LIBRARY))


def _add(folder: Path, name: str, build_data: dict[str, Any], only: tuple[str, ...] = ()) -> None:
    """Put the files below a folder into the wheel, below `name`."""
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden and (not only or path.suffix in only):
            target = f"{name}/{path.relative_to(folder).as_posix()}"
            build_data["force_include"][str(path)] = target


def _add_plotly(build_data: dict[str, Any]) -> None:
    """Put the script that draws charts into the wheel, with its licence; nothing else of plotly.

    In an editable installation the page takes it from the package plotly.
    """
    plotly = metadata.distribution("plotly")
    for path in plotly.files or ():
        licence = path.name.startswith("LICENSE") and ".dist-info" in path.parts[0]
        if licence or path.as_posix() == "plotly/package_data/plotly.min.js":
            build_data["force_include"][str(plotly.locate_file(path))] = (
                f"pgtare/_plotly/{path.name}"
            )


def _load(path: Path) -> Any:
    """The file as a module, without the package around it, whose dependencies may be missing."""
    spec = importlib.util.spec_from_file_location("pgtare_clock_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
