"""What became of a test in ranks, pure: who failed first, who is a victim, who is absent.

outcome: the state of each rank, and failures. raised, failures, stuck: failures out of reports,
deaths, silence and stacks. calls: collectives of ranks compared. merge: one pytest report of all.
"""
