"""What a contained process gives up: its user, memory, files, threads and most system calls.

`confine` runs after the imports of the packages for samplers, and before the import of the uploaded
code; it is irreversible. The filters of system calls are programs for the kernel's seccomp,
assembled here. A program looks at one call: its number, the machine it is meant for, and its
arguments, which may be numbers but nothing that they point to. Classic BPF: one register, jumps
forward only. Every filter first kills the process for a call of another machine or convention,
whose numbers mean something else.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION = 0x2008_0522
_SECCOMP_SET_MODE_FILTER = 1
_ALL_THREADS = 1

_NOTHING = (
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_MEMLOCK,
    resource.RLIMIT_MSGQUEUE,
    resource.RLIMIT_RTPRIO,
)


# --- rights -----------------------------------------------------------------------------------


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def drop_privileges(user: int) -> None:
    """Changes to a user without files, where bubblewrap was started by root.

    Root without capabilities still owns the files of root, and Linux does not limit its threads.
    """
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    # Inheritable capabilities survive the change of the user.
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    _call("capset", ctypes.addressof(header), ctypes.addressof(none))


def confine(bounds: Mapping[str, int]) -> None:
    """Bounds memory, files and threads, and filters all system calls from now on.

    Args:
        bounds: memory_bytes, open_files and threads of the limits.

    Raises:
        OSError: the kernel refuses a limit or the filter.
    """
    for limit in _NOTHING:
        resource.setrlimit(limit, (0, 0))
    # Hosts may pipe core dumps to a program of root; only a limit of 1 prevents it.
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    _call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)
    for limit, name in (
        (resource.RLIMIT_AS, "memory_bytes"),
        (resource.RLIMIT_NOFILE, "open_files"),
        (resource.RLIMIT_NPROC, "threads"),
    ):
        resource.setrlimit(limit, (bounds[name], bounds[name]))
    machine = this_machine()
    if machine is None:
        raise OSError("the system calls of this machine have no numbers here")
    _install_filter(machine)


def _install_filter(machine: Machine) -> None:
    """Installs the strict filter in all threads, also those of libraries."""
    program = strict_filter(machine)
    described = _Program(len(program) // INSTRUCTION_BYTES, program)
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    place = ctypes.addressof(described)
    number = machine.numbers["seccomp"]
    _call("syscall", number, _SECCOMP_SET_MODE_FILTER, _ALL_THREADS, place)


def _call(function: str, *arguments: int) -> None:
    """Calls a function of the C library that returns 0."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, function)(*map(ctypes.c_ulong, arguments)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}{arguments[:2]}: {os.strerror(number)}")


# --- the filters ------------------------------------------------------------------------------

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


def strict_filter(machine: Machine) -> bytes:
    """The program for uploaded code: what is not named fails."""
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


def base_filter(machine: Machine) -> bytes:
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
        step for number in numbers for step in ((JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, answer))
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


# --- numbers of system calls ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Machine:
    """How the kernel numbers system calls for one kind of processor.

    Attributes:
        audit: the kernel's AUDIT_ARCH constant, which every call is checked against.
        numbers: of the calls that are named here. A name that is missing does not exist there.
        foreign_from: numbers from here on belong to another calling convention (x32).
    """

    audit: int
    numbers: Mapping[str, int]
    foreign_from: int


_ALLOWED = (
    # Files: there are none but the interpreter and its packages, read-only.
    "read readv pread64 write writev lseek close openat open newfstatat fstat stat lstat statx "
    "access faccessat faccessat2 getdents64 readlink readlinkat getcwd fcntl dup dup2 dup3 "
    "pipe pipe2 poll ppoll select pselect6 "
    # Memory, bounded by the limit of the address space.
    "brk mmap munmap mremap mprotect madvise "
    # Threads, bounded in number.
    "futex set_robust_list get_robust_list rseq set_tid_address gettid sched_yield "
    "sched_getaffinity getcpu membarrier exit exit_group "
    # Signals within the process.
    "rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack tgkill restart_syscall "
    # Who, when, how much.
    "getpid getppid getuid geteuid getgid getegid getresuid getresgid getgroups getrusage times "
    "clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time uname sysinfo "
    "getrandom getrlimit"
)
ALLOWED = frozenset(_ALLOWED.split())
"""Once uploaded code may run; some others with certain arguments, see `strict_filter`."""

_FORBIDDEN = (
    "ptrace process_vm_readv process_vm_writev keyctl add_key request_key bpf perf_event_open "
    "io_uring_setup io_uring_enter io_uring_register unshare setns mount umount2 pivot_root "
    "open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr chroot kexec_load "
    "init_module finit_module delete_module reboot swapon swapoff userfaultfd socket socketpair "
    "open_by_handle_at name_to_handle_at pidfd_open pidfd_getfd acct quotactl settimeofday "
    "clock_settime shmget msgget semget mq_open memfd_create"
)
FORBIDDEN = frozenset(_FORBIDDEN.split())
"""From the start, also for bubblewrap's own process in there."""

_X86_64 = (
    "read 0 write 1 open 2 close 3 stat 4 fstat 5 lstat 6 poll 7 lseek 8 mmap 9 mprotect 10 "
    "munmap 11 brk 12 rt_sigaction 13 rt_sigprocmask 14 rt_sigreturn 15 ioctl 16 pread64 17 "
    "readv 19 writev 20 access 21 pipe 22 select 23 sched_yield 24 mremap 25 madvise 28 "
    "shmget 29 dup 32 dup2 33 nanosleep 35 getpid 39 socket 41 socketpair 53 clone 56 fork 57 "
    "vfork 58 execve 59 kill 62 uname 63 semget 64 msgget 68 fcntl 72 getcwd 79 readlink 89 "
    "gettimeofday 96 getrlimit 97 getrusage 98 sysinfo 99 times 100 ptrace 101 getuid 102 "
    "getgid 104 geteuid 107 getegid 108 getppid 110 getgroups 115 getresuid 118 getresgid 120 "
    "sigaltstack 131 pivot_root 155 prctl 157 chroot 161 acct 163 settimeofday 164 mount 165 "
    "umount2 166 swapon 167 swapoff 168 reboot 169 init_module 175 delete_module 176 "
    "quotactl 179 gettid 186 time 201 futex 202 sched_getaffinity 204 getdents64 217 "
    "set_tid_address 218 restart_syscall 219 clock_settime 227 clock_gettime 228 "
    "clock_getres 229 clock_nanosleep 230 exit 60 exit_group 231 tgkill 234 mq_open 240 "
    "kexec_load 246 add_key 248 request_key 249 keyctl 250 openat 257 newfstatat 262 "
    "readlinkat 267 faccessat 269 pselect6 270 ppoll 271 unshare 272 set_robust_list 273 "
    "get_robust_list 274 dup3 292 pipe2 293 perf_event_open 298 prlimit64 302 "
    "name_to_handle_at 303 open_by_handle_at 304 setns 308 getcpu 309 process_vm_readv 310 "
    "process_vm_writev 311 finit_module 313 seccomp 317 getrandom 318 memfd_create 319 bpf 321 "
    "execveat 322 userfaultfd 323 membarrier 324 statx 332 rseq 334 io_uring_setup 425 "
    "io_uring_enter 426 io_uring_register 427 open_tree 428 move_mount 429 fsopen 430 "
    "fsconfig 431 fsmount 432 "
    "fspick 433 pidfd_open 434 clone3 435 pidfd_getfd 438 faccessat2 439 mount_setattr 442"
)
_AARCH64 = (
    "io_uring_setup 425 io_uring_enter 426 io_uring_register 427 open_tree 428 move_mount 429 "
    "fsopen 430 fsconfig 431 fsmount 432 fspick 433 pidfd_open 434 clone3 435 pidfd_getfd 438 "
    "faccessat2 439 mount_setattr 442 getcwd 17 dup 23 dup3 24 fcntl 25 ioctl 29 umount2 39 "
    "mount 40 pivot_root 41 faccessat 48 chroot 51 openat 56 close 57 pipe2 59 quotactl 60 "
    "getdents64 61 lseek 62 read 63 write 64 readv 65 writev 66 pread64 67 pselect6 72 ppoll 73 "
    "readlinkat 78 newfstatat 79 fstat 80 acct 89 exit 93 exit_group 94 set_tid_address 96 "
    "unshare 97 futex 98 set_robust_list 99 get_robust_list 100 nanosleep 101 kexec_load 104 "
    "init_module 105 delete_module 106 clock_settime 112 clock_gettime 113 clock_getres 114 "
    "clock_nanosleep 115 ptrace 117 sched_getaffinity 123 sched_yield 124 restart_syscall 128 "
    "kill 129 tgkill 131 sigaltstack 132 rt_sigaction 134 rt_sigprocmask 135 rt_sigreturn 139 "
    "reboot 142 getresuid 148 getresgid 150 times 153 getgroups 158 uname 160 getrlimit 163 "
    "getrusage 165 prctl 167 getcpu 168 gettimeofday 169 settimeofday 170 getpid 172 getppid 173 "
    "getuid 174 geteuid 175 getgid 176 getegid 177 gettid 178 sysinfo 179 mq_open 180 msgget 186 "
    "semget 190 shmget 194 socket 198 socketpair 199 brk 214 munmap 215 mremap 216 add_key 217 "
    "request_key 218 keyctl 219 clone 220 execve 221 mmap 222 swapon 224 swapoff 225 "
    "mprotect 226 madvise 233 perf_event_open 241 prlimit64 261 name_to_handle_at 264 "
    "open_by_handle_at 265 setns 268 process_vm_readv 270 process_vm_writev 271 "
    "finit_module 273 seccomp 277 getrandom 278 memfd_create 279 bpf 280 execveat 281 "
    "userfaultfd 282 membarrier 283 statx 291 rseq 293"
)


def _numbers(text: str) -> dict[str, int]:
    words = text.split()
    return {name: int(number) for name, number in zip(words[::2], words[1::2], strict=True)}


MACHINES = {
    "x86_64": Machine(0xC000003E, _numbers(_X86_64), foreign_from=0x4000_0000),
    "aarch64": Machine(0xC00000B7, _numbers(_AARCH64), foreign_from=0x4000_0000),
}
"""By the name that `os.uname` gives."""
