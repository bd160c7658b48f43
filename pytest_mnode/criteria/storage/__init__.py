"""Is storage as fast as promised, and the same to all nodes?

`files` writes and reads files, `in_ranks` does so on all nodes at once and returns rows, `rules`
judges these, and `asked` has the ranks measure until a value is decided. `pytest_mnode.logs` reads
what fio and elbencho print.
"""
