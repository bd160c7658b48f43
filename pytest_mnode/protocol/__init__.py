"""Messages between the processes of a run: frozen dataclasses, pickled, over a Unix
socket on one kernel, and over its agent's standard streams from another machine.

messages: between the hub, its clients, agents and ranks; nearly all are a Call. A pickle is loaded
only after its sender was authenticated. The messages have no slots because thousands of them arrive
in a test, and a frozen dataclass with slots is slow to unpickle.
"""
