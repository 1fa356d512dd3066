"""Migration of partitions between nodes: protocol, source, target and state."""
