"""All known causes, weightiest first: a line is the first that matches, a text the first it has.

Root causes explain a failure; consequences are what a rank prints that lost another one, and never
win over a root cause. Groups of a pattern (rank, host, device, peer, detail) name the culprit.
"""

from pytest_mnode.logs.causes.machines import MACHINES
from pytest_mnode.logs.causes.networks import NETWORKS
from pytest_mnode.logs.causes.programs import CONSEQUENCES, PROGRAMS, RANKS

TABLE = (*MACHINES, *RANKS, *NETWORKS, *PROGRAMS, *CONSEQUENCES)
