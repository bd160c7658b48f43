"""Proof that traffic runs on the fabric that was promised, by four facts that must agree.

Pinned (the settings of every rank), logged (what each rank's channels or sockets run on), counted
(bytes of the fabric's NICs against what the algorithm must move) and quiet (all other NICs).
`evidence` is what is read of nodes and ranks; `pinned`, `logged` (with `channels`, one rank's NCCL
log, and `fallback`, why NCCL left RDMA) and `counted` remark on it, and `judge` makes measurements
of the remarks. All of them are functions of values, so that recorded facts can be judged anywhere.
"""
