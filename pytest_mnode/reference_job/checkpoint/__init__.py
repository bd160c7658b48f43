"""Checkpoints of a run, which are complete or not used, and which all ranks load alike.

`Store` saves and loads the state of all ranks by torch.distributed.checkpoint. This package adds
a manifest with digests, a commit that survives a kill at any moment, ranks that agree on the
checkpoint to load, and reasons for refusals. Importing it needs no torch, and neither does
`Store.survey`, so that a controller can list the checkpoints of a job that it watches.

A store is a directory that all ranks see, with one directory per checkpoint:

    step-00000020.1-1f2e3d4c          step, number of the attempt, random digits
        __0_0.distcp … .metadata      written by torch.distributed.checkpoint, one shard per rank
        manifest.json                 size and SHA-256 of each of these; step, world size, time
        COMPLETE                      SHA-256 of the manifest
    step-00000030.1-9a8b7c6d.partial  being written or removed, or left by a killed run

COMPLETE is the last file. One rename, to the name without `.partial`, comes after it and commits
the checkpoint. The next save removes partial ones. Everything else in the store is left alone.
"""

from pytest_mnode.reference_job.checkpoint.layout import Found
from pytest_mnode.reference_job.checkpoint.store import Store

__all__ = ["Found", "Store"]
