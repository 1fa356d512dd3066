"""Attempts of uploaded code to escape the sandbox, and what stops each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attempt:
    """One thing that sent code tries. If it succeeds, the sampler keeps everything.

    Attributes:
        what: in words.
        code: of a function of `labels`, `seed` and `place`, a directory of the test's.
        stopped_by: what stops it, in words.
        error: of the sampler, a regular expression.
        ends: whether its process is ended for it.
    """

    what: str
    code: str
    stopped_by: str
    error: str
    ends: bool = False


FILTER = "the filter of system calls"
FILES = "the file system, which has nothing of it"
REFUSED = "PermissionError|Operation not permitted"
MISSING = "FileNotFoundError"

FILE_ATTEMPTS = (
    Attempt("read the passwords of the host", "open('/etc/shadow').read()", FILES, MISSING),
    Attempt("read a file of the node", "open(place + '/data').read()", FILES, MISSING),
    Attempt(
        "read the home directory", "os.listdir(os.path.expanduser('~root/.ssh'))", FILES, MISSING
    ),
    Attempt(
        "read the environment of the node",
        "os.environ['GALILEO_TEST_SECRET']",
        "an environment of its own",
        "KeyError",
    ),
    Attempt("read `/proc/1/environ`", "open('/proc/1/environ').read()", FILES, MISSING),
    Attempt("list `/dev` and `/sys`", "os.listdir('/dev') + os.listdir('/sys')", FILES, MISSING),
    Attempt("write a file", "open('/x', 'w')", "read-only mounts", "Read-only file system"),
    Attempt(
        "change a package for those after it",
        "open(numpy.__file__, 'a')",
        "read-only mounts, and a user that owns nothing",
        "Read-only file system|PermissionError",
    ),
    Attempt("write where it may be temporary", "open('/tmp/x', 'w')", FILES, MISSING),
    Attempt("make a file in memory", "os.memfd_create('x')", FILTER, REFUSED),
    Attempt("change an owner or mode", "os.chmod('/sent/sampler.zip', 0o777)", FILTER, REFUSED),
    Attempt("link or rename", "os.rename('/sent', '/site/x')", FILTER, REFUSED),
    Attempt(
        "write the labels' memory, which it shares with the node",
        "mmap.mmap(memory(), 4096, prot=mmap.PROT_WRITE | mmap.PROT_READ)",
        "a descriptor that cannot write",
        "PermissionError",
    ),
    Attempt("cut the labels' memory", "os.ftruncate(memory(), 0)", FILTER, f"{REFUSED}|Invalid"),
    Attempt(
        "open the labels' memory anew", "open(f'/proc/self/fd/{memory()}', 'wb')", FILES, MISSING
    ),
    Attempt(
        "find a descriptor of the node",
        "next(one for one in range(3, 4096) if is_a(bool, one) and not is_known(one))",
        "inheriting two alone",
        "StopIteration",
    ),
    Attempt(
        "seal the labels' memory against the node",
        "fcntl.fcntl(memory(), fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW)",
        "a descriptor that cannot write",
        "PermissionError",
    ),
    Attempt(
        "make the labels' memory writable",
        "writable(memory())",
        "a descriptor that cannot write",
        "PermissionError|Permission denied",
    ),
    Attempt(
        "use up all file descriptors",
        "try:\n    hold(10_000)\nfinally:\n    release()",
        "the limit of open files",
        "Too many open files",
    ),
    Attempt("map a file by its handle", "call('open_by_handle_at', 0, 0, 0)", FILTER, REFUSED),
)

NETWORK_ATTEMPTS = (
    Attempt(
        "connect to a server on the host's loopback",
        "socket.create_connection(('127.0.0.1', open_port()))",
        FILTER,
        REFUSED,
    ),
    Attempt(
        "connect to an abstract socket of the host",
        "socket.socket(socket.AF_UNIX).connect(chr(0) + f'galileo-canary-{open_port()}')",
        FILTER,
        REFUSED,
    ),
    Attempt("resolve a name", "socket.getaddrinfo('example.org', 80)", FILTER, "gaierror"),
    Attempt("make a pair of sockets", "socket.socketpair()", FILTER, REFUSED),
    Attempt("send packets of its own making", "call('socket', 17, 3, 0)", FILTER, REFUSED),
    Attempt(
        "ask the kernel by a ring of requests", "call('io_uring_setup', 8, 0)", FILTER, REFUSED
    ),
)

PROCESS_ATTEMPTS = (
    Attempt("fork", "os.fork()", FILTER, REFUSED),
    Attempt("fork without end", "[os.fork() for _ in range(1_000_000)]", FILTER, REFUSED),
    Attempt("fork without the C library", "call('clone', 17, 0, 0, 0, 0)", FILTER, REFUSED),
    Attempt("fork by the newest call", "call('clone3', 0, 88)", FILTER, "Function not implemented"),
    Attempt("run a program", "os.execv(sys.executable, ['python'])", FILTER, REFUSED),
    Attempt(
        "run a shell", "subprocess.run(['/bin/sh', '-c', 'id'])", FILTER, f"{REFUSED}|{MISSING}"
    ),
    Attempt(
        "start threads without end",
        "start(9999, lambda: time.sleep(9))",
        "the limit of threads",
        "can't start new thread",
    ),
    Attempt("kill the node", "os.kill(parent(), 9)", f"{FILTER}, and a namespace", REFUSED),
    Attempt("kill everything", "os.kill(-1, 9)", FILTER, REFUSED),
    Attempt(
        "kill a thread of the node",
        "call('tgkill', parent(), parent(), 9)",
        "a namespace of processes",
        "No such process",
    ),
    Attempt("trace another process", "call('ptrace', 16, 1, 0, 0)", FILTER, REFUSED),
    Attempt(
        "read the node's memory",
        "call('process_vm_readv', parent(), 0, 0, 0, 0, 0)",
        FILTER,
        REFUSED,
    ),
    Attempt("outlive the node", "prctl(1, 0)", FILTER, REFUSED),
)

KERNEL_ATTEMPTS = (
    Attempt("mount", "libc_call('mount', b'none', b'/', b'tmpfs', 0, None)", FILTER, REFUSED),
    Attempt("become root", "os.setuid(0)", FILTER, REFUSED),
    Attempt(
        "get capabilities in a namespace of its own", "call('unshare', 0x10000000)", FILTER, REFUSED
    ),
    Attempt("enter another namespace", "call('setns', 0, 0)", FILTER, REFUSED),
    Attempt("change the root directory", "os.chroot('/site')", FILTER, REFUSED),
    Attempt("read the kernel's keyring", "call('keyctl', 0, 0xfffffffd, 1)", FILTER, REFUSED),
    Attempt(
        "keep something in the kernel's keyring", "call('add_key', 0, 0, 0, 0, 0)", FILTER, REFUSED
    ),
    Attempt("load a program into the kernel", "call('bpf', 5, 0, 0)", FILTER, REFUSED),
    Attempt("load a module into the kernel", "call('finit_module', 0, 0, 0)", FILTER, REFUSED),
    Attempt("measure the kernel", "call('perf_event_open', 0, 0, 0, 0, 0)", FILTER, REFUSED),
    Attempt("handle page faults of the kernel", "call('userfaultfd', 0)", FILTER, REFUSED),
    Attempt("keep memory of System V", "call('shmget', 0, 1 << 30, 0o1600)", FILTER, REFUSED),
    Attempt(
        "restart the machine",
        "call('reboot', 0xfee1dead, 672274793, 0x1234567, 0)",
        FILTER,
        REFUSED,
    ),
    Attempt("set the clock", "time.clock_settime(time.CLOCK_REALTIME, 0)", FILTER, REFUSED),
    Attempt("type into a terminal", "fcntl.ioctl(0, 0x5412, b'x')", FILTER, REFUSED),
    Attempt(
        "raise its limits",
        "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
        FILTER,
        f"{REFUSED}|ValueError",
    ),
    Attempt("call a number that does not exist", "number(499)", FILTER, REFUSED),
    Attempt("take the filter off", "prctl(22, 0)", FILTER, REFUSED),
    Attempt(
        "call the kernel as a 32-bit program does",
        "machine_code(b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3')",
        "the filter of system calls, which kills",
        "its process died",
        ends=True,
    ),
    Attempt(
        "call the kernel with x32's numbers",
        "number(0x40000000 + 39)",
        "the filter of system calls, which kills",
        "its process died",
        ends=True,
    ),
)

RESOURCE_ATTEMPTS = (
    Attempt("take much memory", "bytearray(4 << 30)", "the limit of memory", "MemoryError"),
    Attempt(
        "take much memory little by little",
        "[bytes(1 << 20) for _ in range(1 << 16)]",
        "the limit of memory",
        "MemoryError",
    ),
    Attempt(
        "share memory outside the sandbox",
        "mmap.mmap(-1, 4 << 30)",
        "the limit of memory",
        "Cannot allocate",
    ),
    Attempt(
        "compute for ever", "while True: pass", "the limit of CPU time", "of CPU time", ends=True
    ),
    Attempt(
        "compute for ever in many threads, and sleep",
        "start(4, spin); time.sleep(1e6)",
        "the limit of CPU time",
        "of CPU time",
        ends=True,
    ),
    Attempt(
        "sleep for ever", "time.sleep(1e6)", "the limit of time", "took longer than", ends=True
    ),
    Attempt(
        "print for ever",
        "while True: print('x' * 4096)",
        "the limit of output",
        "printed more",
        ends=True,
    ),
    Attempt(
        "exit", "os._exit(0)", "the next call has a new process", "its process died", ends=True
    ),
    Attempt(
        "crash",
        "ctypes.string_at(8)",
        "the next call has a new process",
        "its process died",
        ends=True,
    ),
    Attempt(
        "abort", "os.abort()", "the next call has a new process", "its process died", ends=True
    ),
    Attempt("leave by `SystemExit`", "sys.exit(7)", "being an error as others", "SystemExit: 7"),
    Attempt(
        "catch everything that would stop it",
        "while True:\n    try:\n        time.sleep(1e6)\n    except BaseException:\n        pass",
        "the limit of time",
        "took longer than",
        ends=True,
    ),
)

ANSWER_ATTEMPTS = (
    Attempt(
        "answer with a pickle",
        "return pickle.dumps(labels.table)",
        "the form of answers",
        "expected the sampler to return",
    ),
    Attempt(
        "answer with a mask of another length",
        "return numpy.ones(3, dtype=bool)",
        "the form of answers",
        "expected the sampler to return",
    ),
    Attempt(
        "answer with numbers",
        "return numpy.ones(len(labels))",
        "the form of answers",
        "expected the sampler to return",
    ),
    Attempt(
        "answer with objects",
        "return numpy.array([Evil()] * len(labels))",
        "the form of answers",
        "expected the sampler to return|gone too far",
    ),
    Attempt(
        "write noise into the pipe of answers",
        "os.write(answers(), os.urandom(4096))",
        "the form of answers",
        "wrote into the pipe",
        ends=True,
    ),
    Attempt(
        "announce an endless answer",
        "os.write(answers(), struct.pack('<BQ', 2, 1 << 62))",
        "the form of answers",
        "wrote into the pipe",
        ends=True,
    ),
    Attempt(
        "answer with an Arrow file",
        "os.write(answers(), arrow_file(labels.table))",
        "the form of answers",
        "wrote into the pipe",
        ends=True,
    ),
    Attempt(
        "begin an answer and stop",
        "os.write(answers(), b'x'); time.sleep(1e6)",
        "the limit of time",
        "took longer than",
        ends=True,
    ),
    Attempt(
        "close the pipe of answers",
        "os.close(answers())",
        "the next call has a new process",
        "its process died",
        ends=True,
    ),
    Attempt(
        "read the next question",
        "os.read(0, 100)",
        "the limit of time",
        "took longer than",
        ends=True,
    ),
    Attempt(
        "fail with an error that fails",
        "raise Evil()",
        "being an error as others",
        "an error that cannot be shown",
    ),
    Attempt(
        "fail with a message that drives terminals",
        "raise ValueError(chr(27) + '[2J' + chr(7))",
        "text is shown, not obeyed",
        "ValueError: \N{REPLACEMENT CHARACTER}\\[2J",
    ),
    Attempt(
        "fail with a message without end",
        "raise ValueError('x' * 10_000_000)",
        "the form of answers",
        "ValueError: x{1000}",
    ),
    Attempt(
        "reach the modules of a node", "import galileo.server.main", FILES, "ModuleNotFoundError"
    ),
)

ATTEMPTS = (
    FILE_ATTEMPTS
    + NETWORK_ATTEMPTS
    + PROCESS_ATTEMPTS
    + KERNEL_ATTEMPTS
    + RESOURCE_ATTEMPTS
    + ANSWER_ATTEMPTS
)


def listing() -> str:
    """The attempts as in docs/samplers.md."""
    stopped: dict[str, list[str]] = {}
    for attempt in ATTEMPTS:
        stopped.setdefault(attempt.stopped_by, []).append(attempt.what)
    rows = [f"| {by} | {'; '.join(what)} |" for by, what in stopped.items()]
    return "\n".join(["| stopped by | what was tried |", "|---|---|", *rows])
