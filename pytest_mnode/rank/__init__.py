"""The code of a rank: its pytest session, process group, CPU binding, leak checks and traces."""
