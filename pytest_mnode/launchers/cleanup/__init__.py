"""The cleanup daemon: it ends everything that a launcher started, however the controller ends.

`client` is the controller's side. `daemon` is the program; it runs a task for each resource that
would outlive the controller (`ssh_connections`, `salloc`, `rack`), and removes directories at the
end. All modules except `client` and `rack` need only the standard library.
"""
