"""Commands on other machines: the two ends of a connection, and what is asked of a node first.

`near` runs here, one for each command, and `far` there; `keeper` holds ssh's connections and ends
them with the controller. All three are programs of their own that start in a few milliseconds, from
the standard library and their neighbours here alone; `far` is one text, which is sent. `openssh` is
how the user's ssh is started, `looking` the questions that are put to every node before it is used.
"""
