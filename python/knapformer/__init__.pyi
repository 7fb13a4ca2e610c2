# SPDX-License-Identifier: Apache-2.0
# What needs PyTorch is imported at run time when it is first used; to a type checker it is there.
from . import hooks as hooks, nn as nn, scheduler as scheduler, transport as transport
from ._attention import attention as attention
from .balancer import SequenceBalancer as SequenceBalancer
from .batches import BatchSampler as BatchSampler
from .fit import Fit as Fit, fit as fit
from .plan import Plan as Plan, mix as mix, plan as plan

__version__: str
__all__ = ["plan", "mix", "fit", "Plan", "Fit", "BatchSampler", "SequenceBalancer", "attention",
           "scheduler", "transport", "nn", "hooks", "__version__"]
