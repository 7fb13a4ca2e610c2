# SPDX-License-Identifier: Apache-2.0
import os
from collections.abc import Iterable, Sequence
from typing import SupportsIndex

class Fit:
    linear_s: float
    quadratic_s: float
    constant_s: float
    gamma: float
    r2: float
    mape: float
    holdout_mape: float
    power_s: float
    power_p: float
    power_mape: float
    rows: int
    outliers: int
    ranks: int
    figures: dict[str, float]
    text: str
    def __init__(self, figures: dict[str, float], text: str) -> None: ...
    def save(self, path: str | os.PathLike[str]) -> None: ...

def fit(lens: Iterable[SupportsIndex], seconds: Iterable[float], ranks: Sequence[SupportsIndex] | None = None,
        model: str | None = None) -> Fit: ...
