"""Messages between the controller, agents and ranks, and the channel that carries them."""
