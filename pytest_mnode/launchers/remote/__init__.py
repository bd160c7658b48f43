"""Commands on other machines.

`remote_proxy` runs here, one per command, and `remote_exec` on the node. Both are programs that
need only the standard library and start in milliseconds; remote_exec's text is sent over the
connection. Before nodes are used, `run_all` collects a `node_report` of each, and `check_distinct`
compares them. `launcher` is the base of launchers that reach nodes in this way.
"""
