"""The lint that finds C files which call each other in circles."""

import subprocess
from pathlib import Path

import pytest

from tests.c_cycles import circles_below


def compiled(directory: Path, calls: dict[str, str]) -> None:
    """An object file for each name, with a function of that name that calls the others."""
    for name, called in calls.items():
        source = directory / f"{name}.c"
        source.write_text(
            "".join(f"extern void {other}(void);\n" for other in called)
            + "static void own(void) { }\n"
            + f"void {name}(void) {{ own(); {''.join(f'{other}();' for other in called)} }}\n"
        )
        subprocess.run(["cc", "-c", source, "-o", source.with_suffix(".o")], check=True)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ({"a": "b", "b": "c", "c": ""}, []),
        ({"a": "b", "b": "a", "c": "ab"}, [["a.c", "b.c"]]),
        ({"a": "b", "b": "c", "c": "a", "d": "a"}, [["a.c", "b.c", "c.c"]]),
        (
            {"a": "b", "b": "a", "c": "ad", "d": "ce", "e": "d"},
            [["c.c", "d.c", "e.c"], ["a.c", "b.c"]],
        ),
    ],
)
def test_circles(tmp_path: Path, calls: dict[str, str], expected: list[list[str]]) -> None:
    compiled(tmp_path, calls)
    assert circles_below(tmp_path) == expected
