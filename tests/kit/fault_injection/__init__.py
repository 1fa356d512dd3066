"""Faults on real processes, disks and files, and a ledger that says afterwards what was lost.

`needs` tells what this machine permits, `ledger` what was acknowledged and what is there, `tracing`
makes system calls fail, `disks` are real file systems that can be full, broken or cut off,
`damage` changes stored bytes. `scripts/chaos` and the tests are made of these.
"""
