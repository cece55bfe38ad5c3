"""How a study file writes quantities: shares, lengths of time, clients, names."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo

from pgtare.postgres.load.spec import cores

#: The key of validation's context that tells how many processors a study is for.
CORES = "cores"


def share(value: Any) -> Any:
    """A share from "0.5%"; the sign is wanted, as 0.5 could be a half or half a percent."""
    if isinstance(value, str) and (found := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", value)):
        return float(found[1]) / 100
    raise ValueError(f'{value!r} is no percentage: write it as in "0.5%"')


def _whole_seconds(value: Any) -> int:
    """Seconds from "90s", "2m", "1h"."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f'{value!r} is no duration: write it as in "30s", "2m"')
    seconds = float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]
    if seconds < 1 or seconds != int(seconds):
        raise ValueError(f"{value!r}: pgbench runs whole seconds, at least one")
    return int(seconds)


def _clients(value: Any, info: ValidationInfo) -> Any:
    """A number, or "2/core", of the processors that the context tells, or of those here."""
    if isinstance(value, str) and (found := re.fullmatch(r"(\d+)/core", value)):
        return int(found[1]) * ((info.context or {}).get(CORES) or cores())
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f'{value!r} is no number of clients: write it as in 8 or "2/core"')


Share = Annotated[float, BeforeValidator(share)]
WholeSeconds = Annotated[int, BeforeValidator(_whole_seconds)]
Clients = Annotated[int, BeforeValidator(_clients), Field(ge=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.+-]{0,39}$")]


SettingValue = bool | int | float | str


def percent(share: float) -> str:
    """A share as people write it: 0.5 %."""
    return f"{100 * share:g} %" if math.isfinite(share) else "?"
