"""Nodes on which a site's own command starts one program, which then dials in to the run.

`node` runs on each node; `bridge` runs on this machine, starts the site's command, and carries
commands to the nodes over one encrypted connection each; `launcher` is the launcher over it. The
site's command needs to carry nothing: neither input nor output, as `pbsdsh`.
"""
