"""The filters' programs, run by a plain interpreter of such programs."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest
from galileo_sandbox import confinement
from galileo_sandbox.confinement import ALLOWED, FORBIDDEN, MACHINES, Machine
from hypothesis import given
from hypothesis import strategies as st

WORDS = st.integers(0, 2**64 - 1)
HEADERS = {
    "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": "/usr/include/asm-generic/unistd.h",
}
WITH_ARGUMENTS = {"clone", "prctl", "ioctl", "prlimit64", "clone3"}
DENIED = confinement.FAIL | errno.EPERM


def run(program: bytes, number: int, *arguments: int, audit: int) -> int:
    """What the kernel would answer: the manual's words on BPF, one by one."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<IIQ6Q", number, audit, 0, *padded)
    accumulator = at = 0
    instructions = list(struct.iter_unpack("=HBBI", program))
    while True:
        code, if_true, if_false, operand = instructions[at]
        at += 1
        match code:
            case confinement.LOAD:
                (accumulator,) = struct.unpack_from("<I", data, operand)
            case confinement.AND:
                accumulator &= operand
            case confinement.JUMP_EQUAL:
                at += if_true if accumulator == operand else if_false
            case confinement.JUMP_AT_LEAST:
                at += if_true if accumulator >= operand else if_false
            case confinement.RETURN:
                return int(operand)
            case _:
                raise AssertionError(f"unknown instruction {code}")


@pytest.fixture(params=sorted(MACHINES))
def machine(request: pytest.FixtureRequest) -> Machine:
    return MACHINES[request.param]


def test_strict_filter_allows_listed_calls_only(machine: Machine) -> None:
    program = confinement.strict_filter(machine)
    allowed = {machine.numbers[name] for name in ALLOWED if name in machine.numbers}
    conditional = {machine.numbers[name] for name in WITH_ARGUMENTS}
    for number in set(range(1024)) - conditional:
        expected = confinement.ALLOW if number in allowed else DENIED
        assert run(program, number, audit=machine.audit) == expected, number
    assert run(program, machine.numbers["clone3"], audit=machine.audit) == (
        confinement.FAIL | errno.ENOSYS
    )


def test_base_filter_denies_forbidden_calls(machine: Machine) -> None:
    program = confinement.base_filter(machine)
    forbidden = {machine.numbers[name] for name in FORBIDDEN}
    for number in range(1024):
        expected = DENIED if number in forbidden else confinement.ALLOW
        assert run(program, number, audit=machine.audit) == expected, number


def test_filters_allowed_and_forbidden_are_disjoint() -> None:
    assert not ALLOWED & FORBIDDEN
    assert not (ALLOWED | FORBIDDEN) & WITH_ARGUMENTS
    forking = {"fork", "vfork", "execve", "execveat", "kill", "setuid", "connect", "unlink"}
    assert not ALLOWED & (forking | {"rename", "chmod", "ftruncate", "seccomp", "mknod"})


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.sampled_from(sorted(MACHINES)))
def test_filters_other_architecture_is_killed(number: int, audit: int, name: str) -> None:
    machine = MACHINES[name]
    for program in (confinement.strict_filter(machine), confinement.base_filter(machine)):
        answer = run(program, number, audit=audit)
        assert (answer == confinement.KILL) == (
            audit != machine.audit or number >= machine.foreign_from
        )


@given(WORDS, WORDS, st.sampled_from(sorted(MACHINES)))
def test_strict_filter_clone_of_thread_only_is_allowed(flags: int, other: int, name: str) -> None:
    machine, thread = MACHINES[name], 0x10000 | 0x100
    clone = machine.numbers["clone"]
    program = confinement.strict_filter(machine)
    is_thread = flags & thread == thread
    assert (
        run(program, clone, flags, other, audit=machine.audit) == confinement.ALLOW
    ) == is_thread
    both = flags | thread
    assert run(program, clone, both, other, audit=machine.audit) == confinement.ALLOW


@given(WORDS, st.sampled_from(sorted(MACHINES)))
def test_strict_filter_prlimit_read_only_is_allowed(pointer: int, name: str) -> None:
    machine = MACHINES[name]
    program = confinement.strict_filter(machine)
    prlimit = machine.numbers["prlimit64"]
    answer = run(program, prlimit, 0, 9, pointer, audit=machine.audit)
    assert (answer == confinement.ALLOW) == (pointer == 0)
    for half in (pointer & 0xFFFFFFFF, pointer >> 32 << 32):
        answer = run(program, prlimit, 0, 9, half, audit=machine.audit)
        assert (answer == confinement.ALLOW) == (half == 0)


@given(st.integers(0, 2**32 - 1))
def test_strict_filter_ioctl_and_prctl_listed_only_are_allowed(request: int) -> None:
    machine = MACHINES["x86_64"]
    program = confinement.strict_filter(machine)
    ioctl, prctl = machine.numbers["ioctl"], machine.numbers["prctl"]
    for value in (request, 0x5401, 0x5412, 15, 22, 1):
        answer = run(program, ioctl, 0, value, audit=machine.audit)
        assert (answer == confinement.ALLOW) == (value in {0x5401, 0x541B, 0x5450, 0x5451})
        answer = run(program, prctl, value, audit=machine.audit)
        assert (answer == confinement.ALLOW) == (value in {15, 0x53564D41})


def test_filters_fit_kernel_limit(machine: Machine) -> None:
    for program in (confinement.strict_filter(machine), confinement.base_filter(machine)):
        assert len(program) % confinement.INSTRUCTION_BYTES == 0
        assert len(program) // confinement.INSTRUCTION_BYTES < 4096


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_syscall_numbers_equal_kernel_header(name: str) -> None:
    header = Path(HEADERS[name])
    if not header.exists():
        pytest.skip(f"there is no {header} to compare with")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())
    kernel = {word: int(number) for word, number in found}
    kernel.setdefault("newfstatat", kernel.get("fstatat", -1))
    numbers = MACHINES[name].numbers
    assert {word: kernel[word] for word in numbers} == dict(numbers)
    assert {word for word in ALLOWED | FORBIDDEN if word in kernel} <= numbers.keys()
