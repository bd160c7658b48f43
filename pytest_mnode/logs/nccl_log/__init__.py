"""Reader of NCCL's debug log (`NCCL_DEBUG=INFO`), 2.10 to 2.31 and RCCL, of one rank or of many.

`read.read_nccl_log` reads any text or bytes into the values of `model`. It never guesses: a line
about a channel that it cannot read is in `unknown_lines`, signs of missing lines are in
`truncated`. Judging is not done here.
"""
