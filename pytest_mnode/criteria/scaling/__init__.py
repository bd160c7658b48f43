"""Training over more and more nodes: throughput, efficiency, and where every lost second went.

One torchrun job trains the reference job over all numbers of nodes in turn, in the same processes
(`program`, in ranks); what it measured is one value (`facts`), from which efficiency, parts of the
loss, causes and verdict follow by functions from values to values (`efficiency`, `attribution`,
`causes`, `judging`, `result`). The controller starts it (`measured`) and never imports torch.
"""

from __future__ import annotations

from pytest_mnode.criteria.scaling.measured import Kept, measured
from pytest_mnode.criteria.scaling.result import Scaling
from pytest_mnode.criteria.scaling.table import table

__all__ = ["Kept", "Scaling", "measured", "table"]
