"""A first spec, made of what the nodes of a cluster show: `pytest --mnode-discover=FILE`.

`nodes` asks each node for its machine (`python -m pytest_mnode.machine`). `networks` and `cluster`
are functions from the machines to what most nodes have; `hardware`, `bounds` and `draft` make the
entries of a page, which `page` writes as YAML with a comment on every line: what was seen, where,
and what to compare it with. `findings` runs preflight's judges with that page. `session` is the
pytest plugin. Nothing is judged here: the page is the operator's to confirm.
"""
