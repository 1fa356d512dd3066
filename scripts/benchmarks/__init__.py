"""First figures of Galileo; `scripts/bench` runs them, docs/performance.md explains them."""
