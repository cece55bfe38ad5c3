"""Compile the clock probe while the package is built or installed."""

import importlib.util
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProbeHook(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the probe next to the Python code; without a compiler pgtare is installed without it."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel is built, an editable one too."""
        root = Path(self.root)
        clock = Path("src", "pgtare", "seeing", "clock")
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


def _load(path: Path) -> Any:
    """The file as a module, without the package around it, whose dependencies may be missing."""
    spec = importlib.util.spec_from_file_location("pgtare_clock_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
