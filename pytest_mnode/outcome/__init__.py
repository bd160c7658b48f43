"""Outcome of a test in ranks, pure: the first failure, its victims, and absent ranks.

outcome: the state of each rank, and failures. raised, failures, stuck: failures from reports,
deaths, missing reports and stacks. calls: comparison of collectives. merge: one pytest report.
"""
