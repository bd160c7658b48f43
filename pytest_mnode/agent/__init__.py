"""What runs on a node: the agent without torch, its fork server, and torch's elastic launcher.

The processes of a run, each the parent of the next:

    controller    pytest, with the hub in a thread
    agent         the program that a launcher starts: speaks zmq, starts and ends what is below it
    fork server   imports torch once, single-threaded, and forks
    collector     imports the test modules that can be shared, and forks
    elastic       one per world and node: torch's elastic agent, which forks the ranks
    rank          a pytest session, already collected, that follows the controller

On the rack and on `local` one agent and one fork server serve all nodes, which share a kernel, so
that torch is imported once. There each elastic launcher of the rack has one more parent that
entered the namespaces of its node: a process cannot enter a PID namespace itself, its children can.
"""
