"""Who makes the fabric slow: pairs of nodes, measured one at a time, until it is known.

`rounds` plans which pairs send at the same time, `search` decides what to measure next, `rates`
keeps what was measured, `diagnosis` says what is slow and how sure that is, and `wording` puts it
into words: all pure. `pairs` measures a round in ranks; `locate` runs the search; `leave_one_out`
finds a node that is slow only in company.
"""
