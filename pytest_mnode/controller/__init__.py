"""Worlds: ranks started through torchrun's elastic launcher, tests that run in them, one report.

The processes of a run, each the parent of the next:

    controller   pytest, with the hub in a thread: who may use which nodes, and the switchboard
    gate         the program a launcher starts: the only one of its tree that speaks zmq, guards it
    forge        imports torch and the test modules once, single-threaded, forks agents
    agent        one a node, in the node's namespaces: forks worlds, stops them, takes stacks
    elastic      one a world and node: torch.distributed.launcher, which forks the ranks
    rank         a pytest session, already collected, that follows the controller

On the rack and on `local` one gate and one forge serve all nodes: they share a kernel, so torch is
imported once for all of them. RemoteOptions every node has its own.
"""
