"""The cleanup daemon: it ends everything that a launcher started, however the controller ends.

`client` is the controller's side. `daemon` is the program; it runs a task for each resource that
would outlive the controller (`bridge_task`, `rack`), and removes directories at the end. What a
scheduler was given is ended by a process of its own (`leftovers`, `queue_cleanup`). All modules
except `client`, `leftovers` and `rack` need only the standard library.
"""
