"""Filters of system calls: programs for the kernel's seccomp, assembled here.

A program looks at one call: its number, the machine it is meant for, and its arguments, which may
be numbers but nothing that they point to. Classic BPF: one register, jumps forward only. Every
filter first kills the process for a call of another machine or convention, whose numbers mean
something else.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable, Sequence

from galileo.containment.system_calls import ALLOWED, FORBIDDEN, MACHINES, Machine

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand: `struct sock_filter`."""

LOAD = 0x20
"""A 32-bit word of `struct seccomp_data`."""
AND = 0x54
JUMP_EQUAL = 0x15
JUMP_AT_LEAST = 0x35
RETURN = 0x06

ALLOW = 0x7FFF_0000
FAIL = 0x0005_0000
"""Plus the error number that the call returns."""
KILL = 0x8000_0000

_INSTRUCTION = struct.Struct("=HBBI")
INSTRUCTION_BYTES = _INSTRUCTION.size
_NUMBER_AT = 0
_MACHINE_AT = 4
_ARGUMENTS_AT = 16
_ARGUMENT_BYTES = 8

# What threads share and other processes do not.
_THREAD_FLAGS = 0x0001_0000 | 0x0000_0100
_PR_SET_NAME = 15
_PR_SET_VMA = 0x53564D41
_TCGETS, _FIONREAD, _FIONCLEX, _FIOCLEX = 0x5401, 0x541B, 0x5450, 0x5451


def this_machine() -> Machine | None:
    """The system call numbers of this machine; None if unknown."""
    return MACHINES.get(os.uname().machine)


def strict(machine: Machine) -> bytes:
    """The program for sent code: what is not named does not happen."""
    numbers = machine.numbers
    rules = [
        *_if_bits("clone", 0, _THREAD_FLAGS, machine),
        *_if_argument("prctl", 0, [_PR_SET_NAME, _PR_SET_VMA], machine),
        *_if_argument("ioctl", 1, [_TCGETS, _FIONREAD, _FIONCLEX, _FIOCLEX], machine),
        *_if_null("prlimit64", 2, machine),
        # The C library then starts its threads with `clone`, whose flags can be looked at.
        *_answers([numbers["clone3"]], FAIL | errno.ENOSYS),
        *_answers(_known(ALLOWED, machine), ALLOW),
    ]
    return _assemble([*_guard(machine), *rules, (RETURN, 0, 0, FAIL | errno.EPERM)])


def base(machine: Machine) -> bytes:
    """The program from the start on: for the interpreter that is on its way to the strict one."""
    rules = _answers(_known(FORBIDDEN, machine), FAIL | errno.EPERM)
    return _assemble([*_guard(machine), *rules, (RETURN, 0, 0, ALLOW)])


def _known(names: Iterable[str], machine: Machine) -> list[int]:
    return sorted(machine.numbers[name] for name in names if name in machine.numbers)


def _guard(machine: Machine) -> list[Instruction]:
    return [
        (LOAD, 0, 0, _MACHINE_AT),
        (JUMP_EQUAL, 1, 0, machine.audit),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, _NUMBER_AT),
        (JUMP_AT_LEAST, 0, 1, machine.foreign_from),
        (RETURN, 0, 0, KILL),
    ]


def _answers(numbers: Iterable[int], answer: int) -> list[Instruction]:
    """One answer for each of some calls; the register holds the number, and keeps it."""
    return [
        one for number in numbers for one in ((JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, answer))
    ]


def _if_bits(name: str, argument: int, bits: int, machine: Machine) -> list[Instruction]:
    """Allows a call with all of some bits set in an argument's lower half."""
    return _asked(
        name,
        [
            (LOAD, 0, 0, _lower_half(argument)),
            (AND, 0, 0, bits),
            (JUMP_EQUAL, 0, 1, bits),
            (RETURN, 0, 0, ALLOW),
        ],
        machine,
    )


def _if_argument(
    name: str, argument: int, values: Sequence[int], machine: Machine
) -> list[Instruction]:
    """Allows a call with one of some values in an argument's lower half."""
    checks = [(LOAD, 0, 0, _lower_half(argument)), *_answers(values, ALLOW)]
    return _asked(name, checks, machine)


def _if_null(name: str, argument: int, machine: Machine) -> list[Instruction]:
    """Allows a call whose argument is no pointer."""
    return _asked(
        name,
        [
            (LOAD, 0, 0, _lower_half(argument)),
            (JUMP_EQUAL, 0, 3, 0),
            (LOAD, 0, 0, _lower_half(argument) + 4),
            (JUMP_EQUAL, 0, 1, 0),
            (RETURN, 0, 0, ALLOW),
        ],
        machine,
    )


def _asked(name: str, checks: list[Instruction], machine: Machine) -> list[Instruction]:
    """Checks of one call's arguments, which end in its refusal; other calls pass them by."""
    body = [*checks, (RETURN, 0, 0, FAIL | errno.EPERM)]
    return [(JUMP_EQUAL, 0, len(body), machine.numbers[name]), *body]


def _lower_half(argument: int) -> int:
    """Its offset; both kinds of machine are little-endian."""
    return _ARGUMENTS_AT + _ARGUMENT_BYTES * argument


def _assemble(program: Iterable[Instruction]) -> bytes:
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in program)
