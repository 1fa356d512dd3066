"""A storage node without its network: its data, and its answers together with its peers."""
