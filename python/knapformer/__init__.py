# SPDX-License-Identifier: Apache-2.0
"""knapformer: an online load balancer for Diffusion Transformer training.

Without PyTorch:
    plan(lens_per_rank)        who computes what in one step     scheduler.Scheduler   the same online: learns
    fit(lens, seconds)         measured times become a cost      BatchSampler          batches of even work
    mix(name)                  example lengths

With PyTorch:
    SequenceBalancer           balance a training loop           attention   packed, variable length
    nn.LayerNormModulate       the fused kernel                  transport   pack_for_bag, unpack_from_bag
    hooks.attach_to_trainer    balance a trainer from outside

Errors are ValueError with one sentence that names the value and what was expected. Lines of the scheduler's log
go to the logger "knapformer".
"""
import importlib
from typing import TYPE_CHECKING

from . import _core, scheduler
from .batches import BatchSampler
from .fit import Fit, fit
from .plan import Plan, mix, plan

__version__ = _core.version
__all__ = ["plan", "mix", "fit", "Plan", "Fit", "BatchSampler", "SequenceBalancer", "attention", "scheduler", "transport",
           "nn", "hooks", "__version__"]

# What needs PyTorch is imported when it is first used; to a type checker it is there.
_LAZY = {"SequenceBalancer": "balancer", "attention": "_attention", "nn": None, "hooks": None, "transport": None}
if TYPE_CHECKING:
    from . import hooks, nn, transport
    from ._attention import attention
    from .balancer import SequenceBalancer
else:
    def __getattr__(name):
        if name not in _LAZY:
            raise AttributeError("module 'knapformer' has no attribute %r" % name)
        module = importlib.import_module("." + (_LAZY[name] or name), __name__)
        value = module if _LAZY[name] is None else getattr(module, name)
        globals()[name] = value
        return value


def __dir__():
    return sorted(__all__)
