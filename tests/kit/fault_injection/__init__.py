"""Faults on real processes, disks and files, and a ledger that checks afterwards what was lost.

`requirements` checks what this machine permits, `ledger` compares acknowledged with stored data,
`strace` makes system calls fail, `disks` are real file systems that can be full, broken or cut off,
`damage` changes stored bytes. `scripts/chaos` and the tests use these.
"""
