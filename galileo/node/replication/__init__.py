"""Replicas of partitions: the driver of their machines, the writers of their logs, messages."""
