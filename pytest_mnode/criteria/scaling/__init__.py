"""Training over more and more nodes: throughput, efficiency, and where every lost second went.

One world trains the reference job over all numbers of nodes in turn, in the same processes
(`program`, in ranks). What it measured is one value (`timings`), from which efficiency, parts of
the loss, causes and verdict follow by functions from values to values (`efficiency`, `attribution`,
`causes`, `network`, `judge`). The controller opens the world (`job`) and never imports torch.
"""
