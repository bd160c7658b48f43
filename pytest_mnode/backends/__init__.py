"""Where nodes come from, and how jobs start on them: one class for each kind, in a file of its own.
An installed package adds its own (entry point group `pytest_mnode.backends`, see `registry`).

How commands reach the nodes of a backend is in `launchers`.
"""

from pytest_mnode.backends.backend import Backend, FreeNode, FreeNodes, Here, NodeRequest

__all__ = ["Backend", "FreeNode", "FreeNodes", "Here", "NodeRequest"]
