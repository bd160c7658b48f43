"""The virtual cluster: a whole night's values for a spec's platform, healthy or with faults.

`cluster` is the truth: rates, errors and machines of every node, NIC and accelerator. `faults`
changes the truth, never a verdict. The modules named for criteria draw from it what
the acceptance suite would measure, in the suite's own types, and have it judged by the suite's own
rules; `night` makes the certificate. Nothing here starts a process or a rank.
"""
