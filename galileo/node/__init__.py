"""A storage node without its network: what it keeps, and how it answers with its peers."""
