"""The system calls that contained code may make, by name, and their numbers on each machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
"""Once sent code may run; some others with certain arguments, see `filters`."""

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
