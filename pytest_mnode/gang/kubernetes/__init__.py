"""Gangs on Kubernetes: one engine, and a class for each kind of object that makes a gang.

`engine` talks to the API server, watches, and reads the heartbeats that ranks print. A class in
`kinds` defines which objects make a gang and how the root object's status is interpreted: plain
Jobs, PodGroups of the scheduler itself, Kueue, Volcano and others. `pods` has values, `served`
nodes and API versions; `cleanup` is the program that deletes a run's objects.
"""
