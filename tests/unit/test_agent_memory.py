"""What the agent keeps out of its memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import sys
import pyarrow as pa
from pgtare.keeping.agent.process_memory import leave_pandas_out
leave_pandas_out()
pa.table({"a": [1, None], "b": ["x", "y"]})
print("pandas" in sys.modules)
import pandas
print("pandas" in sys.modules)
"""


def test_pandas_is_not_loaded_and_can_be() -> None:
    """pyarrow would load it with the first table that is made from lists."""
    pytest.importorskip("pandas")
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["False", "True"]
