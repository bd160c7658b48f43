"""Trains on more and more nodes: throughput, efficiency, and the causes of all lost time.

One world trains the reference job over all numbers of nodes in turn, in the same processes
(`program`, in ranks). Its measurements are one value (`timings`), from which pure functions compute
efficiency, parts of the loss, causes and verdict (`efficiency`, `attribution`, `causes`, `network`,
`judge`). The controller opens the world (`job`) and never imports torch.
"""
