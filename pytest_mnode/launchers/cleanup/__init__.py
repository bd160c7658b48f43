"""What outlives the controller: one daemon that ends what a launcher started, however it ends.

`client` is the controller's side. `daemon` is the program; it runs one task per thing that would
outlive the controller (`ssh_connections`, `salloc`, `rack`), and removes directories at the end.
Except for `client` and the rack's task all of it needs only the standard library.
"""
