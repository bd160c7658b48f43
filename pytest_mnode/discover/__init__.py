"""A first spec, made of what the nodes of a cluster show: `pytest --mnode-discover=FILE`.

`look` is a small program that is run once on every node and tells what is there; `conduct` is the
controller's side of it. `agreeing`, `networks` and `findings` are functions from what was told to
what most nodes have, and `page` puts that down as YAML with a comment on every line: what was seen,
where, and what to compare it with. Nothing is judged here: the page is the operator's to confirm.
"""
