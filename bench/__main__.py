"""Lists the benchmarks, or runs one: `python -m bench [NAME [options]]`.

A benchmark is a module of this folder with a constant TAKES (how long it runs, and what it needs),
a function `main` that gets the parsed options and returns the exit status, and, if it has options,
a function `options` that declares them. ONE_THREAD: numpy may take one processor only.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pgtare.errors import PgtareError


@dataclass(frozen=True)
class Benchmark:
    """What the list says of one."""

    name: str
    line: str
    takes: str
    one_thread: bool


def benchmarks() -> dict[str, Benchmark]:
    """All of them by name. They are read, not imported: importing them all takes seconds."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = {
            node.targets[0].id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        }
        if "TAKES" in constants:
            line = (ast.get_docstring(tree) or "").partition("\n")[0]
            one_thread = bool(constants.get("ONE_THREAD"))
            found[path.stem] = Benchmark(path.stem, line, str(constants["TAKES"]), one_thread)
    return found


def main(words: Sequence[str]) -> int:
    """Exit status 1 if the benchmark found something wrong, 2 if none has that name."""
    found = benchmarks()
    if not words or words[0] in ("-h", "--help"):
        for one in found.values():
            print(f"{one.name:16} {one.line}\n{'':16} {one.takes}")
        print("\npython -m bench NAME runs one; python -m bench NAME --help shows its options")
        return 0
    name, *rest = words
    if name not in found:
        print(f"error: no benchmark is called {name}: python -m bench lists all", file=sys.stderr)
        return 2
    if found[name].one_thread:
        os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    module = importlib.import_module(f"bench.{name}")
    parser = argparse.ArgumentParser(
        prog=f"python -m bench {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if hasattr(module, "options"):
        module.options(parser)
    try:
        return int(module.main(parser.parse_args(rest)) or 0)
    except PgtareError as ex:
        print(f"error: {ex}", file=sys.stderr)
        return ex.exit_status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
