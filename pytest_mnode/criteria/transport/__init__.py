"""Proves that traffic runs on the promised fabric, by four facts that must agree.

Pinned (the settings of every rank), logged (the network of each rank's channels or sockets),
counted (bytes of the fabric's NICs, compared with those that the algorithm must move) and quiet
(all other NICs). `evidence` holds the facts read from nodes and ranks; `pinned`, `logged` (with
`channels`, one rank's NCCL log) and `counted` make remarks on them, and `counted.judge` turns
remarks into measurements. All judging is pure, so that recorded facts can be judged anywhere.
"""
