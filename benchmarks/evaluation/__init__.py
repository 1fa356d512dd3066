"""The paper's evaluation, repeated on one machine: measured part by part, and put on one page."""
