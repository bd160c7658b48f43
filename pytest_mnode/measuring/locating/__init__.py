"""Search for the culprit of a slow fabric: pairs of nodes are measured until it is found.

`rounds` plans which pairs send at the same time, `search` decides what to measure next, `rates`
keeps the measured rates, `diagnosis` decides what is slow and whether that is confirmed, and
`wording` puts it into words; these are pure. `pairs` measures a round in ranks; `locate` runs the
search; `leave_one_out` finds a node that slows collectives although its pairs are fast.
"""
