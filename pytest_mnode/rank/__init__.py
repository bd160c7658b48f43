"""What runs in a rank: its pytest session, process group, CPU binding, leak checks and traces."""
