"""Nodes that are Kubernetes pods, one per cluster node, with a tenant's rights in one namespace.

The launcher runs in the controller. The bridge is one program per run, held by the cleanup daemon:
it creates the run's objects, watches its pods, carries commands to them over exec streams, and
deletes the objects in the end. pod_wait runs in pods. manifest and pods are values.
"""
