"""What is measured: each part by itself, as values that can be stored."""
