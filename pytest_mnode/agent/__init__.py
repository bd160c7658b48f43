"""What runs on a node: the supervisor, the fork server, the agent, and torch's elastic launcher."""
