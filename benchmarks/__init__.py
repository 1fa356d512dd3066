"""First figures of Galileo; `scripts/bench` runs them, docs/dev/performance.md explains them."""
