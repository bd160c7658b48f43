"""Soak: rounds of checked load over rotating pairs until a time is over; what failed, and when.

`rounds` runs in ranks and measures one round with the functions of `measuring`; `running` drives
rounds from the controller and keeps each as rows of the evidence; `judging` is pure: rounds to
measurements and charts.
"""
