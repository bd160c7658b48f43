"""Gangs on Kubernetes: one engine, and a file for each kind of object that makes a gang there.

`engine` talks to the API server. A `Kind` (in `kinds`) says which objects make a gang and what the
root object's status means: plain Jobs, PodGroups of the scheduler itself, Kueue, Volcano and others
are one file each. `pods` and `nodes` are values; `streams` has the watch and the ranks' heartbeats,
which they print; `cleanup` is the program that deletes a run's objects.
"""
