"""The paper's evaluation, repeated on one machine: measured part by part, told on one page."""
