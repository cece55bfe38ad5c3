"""The lint that finds C files which need each other in circles."""

import subprocess
from pathlib import Path

import pytest

from tests.c_cycles import circles_below


def built(source: Path, text: str, *flags: str) -> None:
    """An object file next to a source."""
    source.write_text(text)
    subprocess.run(["cc", *flags, "-c", source, "-o", source.with_suffix(".o")], check=True)


def compiled(directory: Path, calls: dict[str, str]) -> None:
    """An object file for each name, with a function of that name that calls the others."""
    for name, called in calls.items():
        built(
            directory / f"{name}.c",
            "".join(f"extern void {other}(void);\n" for other in called)
            + "static void own(void) { }\n"
            + f"void {name}(void) {{ own(); {''.join(f'{other}();' for other in called)} }}\n",
        )


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


@pytest.mark.parametrize(
    "variable",
    ["int a;", "int a = 1;", "const int a = 1;", "int a __attribute__((weak));"],
    ids=["zero", "value", "constant", "weak"],
)
@pytest.mark.parametrize("common", [False, True])
def test_a_circle_through_a_variable(tmp_path: Path, variable: str, common: bool) -> None:
    """A file that reads another's variable depends on it, whatever section that is in."""
    flag = "-fcommon" if common else "-fno-common"
    built(
        tmp_path / "a.c",
        f"{variable}\nextern void b(void);\nvoid call(void) {{ b(); }}\n",
        flag,
    )
    built(
        tmp_path / "b.c",
        "extern int a;\nstatic int own;\nvoid b(void) { own = a; }\n",
        flag,
    )
    assert circles_below(tmp_path) == [["a.c", "b.c"]]
