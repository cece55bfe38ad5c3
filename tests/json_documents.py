"""The JSON documents of the commands, as the documentation lists them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "docs" / "_ext"))
documents = importlib.import_module("json_documents").documents
