"""First figures of Galileo on this machine; `scripts/bench` runs them, docs/performance.md explains."""
