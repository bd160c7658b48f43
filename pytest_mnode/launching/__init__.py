"""Starting jobs as users do, and finding out what they got: paths, styles, meetings, the store.

The controller's side describes a job, submits it with a clean environment and judges what every
rank of it says it found. The ranks' side is `meeting`, the store under load and the programs that
jobs run. Nothing here starts a world, and nothing at this level imports torch.
"""

from __future__ import annotations
