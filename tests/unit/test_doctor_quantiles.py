"""Student's quantiles of the doctor are those of scipy, which an agent must not load."""

from __future__ import annotations

import subprocess
import sys

import pytest
import scipy

from pgtare.observing.doctor import quantiles


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 10, 31, 300, 3601])
def test_student(degrees: int) -> None:
    expected = scipy.special.stdtrit(degrees, 0.975)
    assert quantiles.student(degrees, 0.975) == pytest.approx(expected, rel=1e-9)


def test_an_agent_does_not_load_scipy() -> None:
    code = "import sys, pgtare.cli.agent; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
