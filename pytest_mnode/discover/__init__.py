"""A first spec, drafted from the machines of a cluster's nodes: `pytest --mnode-discover=FILE`.

`nodes` reads each node's machine (`python -m pytest_mnode.machine`). `networks` and `cluster`
are functions from the machines to what most nodes have; `hardware`, `bounds` and `draft` make the
entries of a page, which `page` writes as YAML with a comment on every line: what was seen, where,
and what to compare it with. `session` is the pytest plugin, which runs preflight's checks with that
page. Nothing is judged here: the operator must confirm the page.
"""
