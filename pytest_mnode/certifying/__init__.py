"""What a run of criteria adds to the controller, as pytest plugins beside the engine.

certificate_plugin: gathers the evidence, and writes the certificate at the end; narrowing: which
criteria were collected and which were left out. plan: what a run would ask and take, in its place;
budget: ends a run when its time is spent; free_nodes: the nodes that a run takes. They use the
controller, which knows none of them.
"""
