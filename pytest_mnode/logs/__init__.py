"""Readers of other programs' output: NCCL, nccl-tests, perftest and the kernel log. Pure."""
