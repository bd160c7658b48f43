"""What runs in the controller, which is pytest: the hub, leases, worlds, the conductor."""
