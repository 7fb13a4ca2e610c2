# SPDX-License-Identifier: Apache-2.0
"""Measured times become a cost. Needs no PyTorch."""
import os

from . import _core
from .plan import ints, reals


class Fit:
    """seconds(l) = linear_s * l + quadratic_s * l * l + constant_s, fitted robustly (doc/fit.md): gamma r2 mape
    holdout_mape power_p power_mape rows outliers ranks say how well."""

    def __init__(self, figures, text):
        self.__dict__.update(figures)
        self.figures, self.text = figures, text

    def save(self, path):
        """Write the file for cost_model="modelled", whole or not at all."""
        _core.replace_file(os.fspath(path), self.text.encode())

    def __repr__(self):
        return "<knapformer.Fit of %d rows: mape %.2g, gamma %.3g>" % (self.rows, self.mape, self.gamma)


def fit(lens, seconds, ranks=None, model=None):
    """Fit at least 3 measurements of at least 2 lengths: a whole sequence of lens[i] tokens took seconds[i], on
    rank ranks[i] where that is given. `model` (its width; flux) is for gamma only."""
    lens, seconds = list(lens), list(seconds)
    if len(lens) != len(seconds):
        raise ValueError("%d lengths and %d times, expected as many" % (len(lens), len(seconds)))
    if ranks is not None and len(ranks) != len(lens):
        raise ValueError("%d ranks and %d lengths, expected as many" % (len(ranks), len(lens)))
    return Fit(*_core.fit(ints(lens), reals(seconds), None if ranks is None else ints(ranks), model))
