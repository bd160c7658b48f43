"""Checkpoints of a run: written whole or not at all, and used only when proven to be so.

`Store` saves and loads the state of all ranks by torch.distributed.checkpoint. Here is what that
leaves open: a manifest with digests, a commit that survives a kill at any moment, ranks that agree
on what is loaded, and reasons. Importing this needs no torch, and neither does `Store.survey`: a
controller may look at the checkpoints of a job that it watches.

A store is a directory that all ranks see, with a directory a checkpoint:

    step-00000020                     a checkpoint, once it holds COMPLETE
        __0_0.distcp … .metadata      what torch.distributed.checkpoint writes, a shard a rank
        manifest.json                 size and SHA-256 of each of these; step, world size, time
        COMPLETE                      the SHA-256 of the manifest; comes last, by a rename
    step-00000030.partial-1f2e3d4c    being written, or what a killed run left
    step-00000020.replaced-1f2e3d4c   a checkpoint of the same step until the new one is complete
    step-00000010.removed-1f2e3d4c    being removed

All else in the directory is left alone.
"""

from pytest_mnode.reference_job.checkpoint.found import Found, Loaded, Refused, Saved
from pytest_mnode.reference_job.checkpoint.store import Store

__all__ = ["Found", "Loaded", "Refused", "Saved", "Store"]
