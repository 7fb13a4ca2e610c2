# SPDX-License-Identifier: Apache-2.0
"""Measured times become a cost. Needs no PyTorch."""
from __future__ import annotations

import os
from typing import TYPE_CHECKING, Iterable, Sequence, SupportsIndex

from . import _core
from .plan import ints, reals


class Fit:
    """seconds(l) = linear_s * l + quadratic_s * l * l + constant_s, fitted robustly (doc/fit.md): gamma r2 mape
    holdout_mape power_p power_mape rows outliers ranks say how well."""

    if TYPE_CHECKING:
        linear_s = quadratic_s = constant_s = gamma = r2 = mape = holdout_mape = power_s = power_p = power_mape = 0.0
        rows = outliers = ranks = 0

    def __init__(self, figures: dict[str, float], text: str) -> None:
        self.__dict__.update(figures)
        self.figures, self.text = figures, text

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file for cost_model="modelled", whole or not at all."""
        _core.replace_file(os.fspath(path), self.text.encode())

    def __repr__(self):
        return "<knapformer.Fit of %d rows: mape %.2g, gamma %.3g>" % (self.rows, self.mape, self.gamma)


def fit(lens: Iterable[SupportsIndex], seconds: Iterable[float], ranks: Sequence[SupportsIndex] | None = None,
        model: str | None = None) -> Fit:
    """Fit at least 3 measurements of at least 2 lengths: a whole sequence of lens[i] tokens took seconds[i], on
    rank ranks[i] where that is given. `model` (its width; flux) is for gamma only."""
    lens, seconds = list(lens), list(seconds)
    if len(lens) != len(seconds):
        raise ValueError("%d lengths and %d times, expected as many" % (len(lens), len(seconds)))
    if ranks is not None and len(ranks) != len(lens):
        raise ValueError("%d ranks and %d lengths, expected as many" % (len(ranks), len(lens)))
    return Fit(*_core.fit(ints(lens), reals(seconds), None if ranks is None else ints(ranks), model))
