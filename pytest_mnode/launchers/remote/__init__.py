"""Commands on other machines.

`bridge` runs here, once for a run, and holds one stream to `remote_exec` on each node, of three
kinds: `stdio_bridge`, dial_in and kubernetes. `node_process` asks the bridge for each command, or
`node_command` does, a program for those who want a local command line. Where remote_exec's text is
sent over the stream, it needs only the standard library. Before nodes are used, `run_all` collects
a `node_report` of each, and `check_distinct` compares them. `launcher` is the base of launchers
that reach nodes in this way.
"""
