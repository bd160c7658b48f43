"""What the checks of placement share. Pure.

`near` says which CPUs and memory are near a device, and what a rank reads of itself, as rows, which
the checks of `checks.placement` judge; `numa_map` draws ranks on the hardware of their nodes.
"""
