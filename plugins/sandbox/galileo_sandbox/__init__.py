"""Runs samplers that users upload to Galileo in sandboxed processes.

A process lives under bubblewrap, with namespaces of its own and no capabilities, sees the
interpreter and the few packages that samplers work with, read-only, has its memory, threads and
files bounded, and filters its own system calls before any uploaded code is imported. What it
answers is a mask of a known length; nothing else of it is ever parsed. docs/sandbox.md lists the
attacks that were tried, and docs/dev/decisions/0024-containment.md has the reasons.

Galileo finds `pool.SandboxPool` by its entry point. The contained process imports from this package
`worker`, `confinement` and `protocol` alone, so nothing is imported here.
"""
