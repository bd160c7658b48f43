"""The code that runs on a node: the torch-free agent, its fork server, torch's elastic launcher.

The processes of a run, each the parent of the next:

    controller    pytest, with the hub in a thread
    agent         the program that a launcher starts: starts and ends the processes below
    fork server   imports torch once, single-threaded, and forks
    collector     imports the test modules that can be shared, and forks
    elastic       one per world and node: torch's elastic agent, which forks the ranks
    rank          a pytest session, already collected, that follows the controller

On the rack and on `local` one agent and one fork server serve all nodes, which share a kernel, so
that torch is imported once. On the rack each elastic launcher has an additional parent that entered
the namespaces of its node: setns() into a PID namespace affects only children, not the caller.
"""
