"""One node process: storage, continuous queries and their network, joined."""
