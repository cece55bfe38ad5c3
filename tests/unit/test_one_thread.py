"""The command computes in one thread: those of the linear algebra would spin on a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# what a profile of a trace loads and uses, then its threads
_COUNT = """
import contextlib, psutil, sys
from pgtare.__main__ import main
sys.argv = ["pgtare", "trace", "profile", sys.argv[1]]
with contextlib.suppress(SystemExit):
    main()
import numpy as np
a = np.ones((400, 400)) + np.eye(400)
np.linalg.solve(a @ a, a)
print(psutil.Process().num_threads())
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one processor makes one thread")
def test_a_profile_computes_in_one_thread(tmp_path: Path) -> None:
    spared = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", _COUNT, tmp_path / "none"],
        env=spared,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == 1
