"""A network of namespaces between real processes, with a switch of our own that can lose packets.

Each host is a network namespace with a TUN device. The switch, a thread of this process, carries IP
packets between the devices, or drops them: all of one direction, or a share. Namespaces and devices
belong to processes and open files; when these end, nothing is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
import random
import select
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MTU = 9_000
_DEVICE = "galileo0"
PREFIX = "10.77.0."
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000
_DESTINATION = slice(16, 20)
_LOOK_S = 0.2
_PROBE = """
import socket
try:
    socket.create_connection(("{}", 9), timeout=10)
except OSError as error:
    print(type(error).__name__)
"""

Link = tuple[str, str]


class Host:
    """One namespace; `address` is its only one besides loopback.

    Args:
        name: of the host.
        number: from 1 on, of its address.
        here: the namespace of this process, rather than a new one.
    """

    def __init__(self, name: str, number: int, *, here: bool = False) -> None:
        self.name = name
        self.address = f"{PREFIX}{number}"
        self._holder = None if here else _holder(name)
        if self._holder is None:
            _run(["ip", "link", "set", "lo", "up"])
        self.device = _in_namespace(self._path, lambda: _tun(self.address))

    @property
    def prefix(self) -> tuple[str, ...]:
        """Words before a command that is to run on this host."""
        return ("nsenter", f"--net={self._path}")

    @property
    def _path(self) -> str:
        return f"/proc/{self._holder.pid if self._holder else os.getpid()}/ns/net"

    def close(self) -> None:
        os.close(self.device)
        if self._holder is not None:
            _end(self._holder)


class Network:
    """Hosts and the switch between them. Use it in a `with` block.

    Args:
        names: of the hosts.
        seed: of the packets that are lost.
        here: that of the names which is this process itself; its namespace should be its own.

    Attributes:
        hosts: by name.
        carried, dropped: packets so far.
    """

    def __init__(self, names: Sequence[str], *, seed: int, here: str = "") -> None:
        self.hosts: dict[str, Host] = {}
        self.carried = self.dropped = 0
        self._random = random.Random(seed)
        self._loss: dict[Link, float] = {}
        self._ending = threading.Event()
        self._names, self._here = tuple(names), here
        self._thread = threading.Thread(target=self._carry, daemon=True)

    def __enter__(self) -> Network:
        try:
            for number, name in enumerate(self._names, start=1):
                self.hosts[name] = Host(name, number, here=name == self._here)
        except BaseException:
            self._close()
            raise
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ending.set()
        self._thread.join()
        self._close()

    @contextlib.contextmanager
    def losing(self, links: Sequence[Link], share: float = 1.0) -> Iterator[None]:
        """Drops a share of the packets of each link, (from, to), within the block."""
        self._loss = dict.fromkeys(links, share)
        try:
            yield
        finally:
            self._loss = {}

    def around(self, name: str) -> list[Link]:
        """Both directions between a host and all others."""
        others = [other for other in self.hosts if other != name]
        return [link for other in others for link in ((name, other), (other, name))]

    def _carry(self) -> None:
        senders = {host.device: host for host in self.hosts.values()}
        receivers = {_packed(host.address): host for host in self.hosts.values()}
        while not self._ending.is_set():
            ready, _, _ = select.select([*senders], [], [], _LOOK_S)
            for device in ready:
                packet = os.read(device, MTU)
                receiver = receivers.get(packet[_DESTINATION])
                if receiver is None or self._is_lost(senders[device].name, receiver.name):
                    self.dropped += receiver is not None
                    continue
                with contextlib.suppress(OSError):
                    os.write(receiver.device, packet)
                self.carried += 1

    def _is_lost(self, sender: str, receiver: str) -> bool:
        share = self._loss.get((sender, receiver), 0.0)
        return share > 0 and self._random.random() < share

    def _close(self) -> None:
        for host in self.hosts.values():
            host.close()


def _holder(name: str) -> subprocess.Popen[str]:
    """A process that does nothing but have a namespace of its own."""
    process = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep 86400"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    if process.stdout.readline().strip() != "up":
        _end(process)
        raise OSError(f"expected a network namespace for {name}, got none")
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _run(words: Sequence[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)} failed: {done.stderr.strip()}")


def _packed(address: str) -> bytes:
    return bytes(map(int, address.split(".")))


def _tun(address: str) -> int:
    """A TUN device in the namespace of this thread, that is up."""
    device = os.open("/dev/net/tun", os.O_RDWR)
    try:
        fcntl.ioctl(
            device, _TUNSETIFF, struct.pack("16sH22x", _DEVICE.encode(), _IFF_TUN | _IFF_NO_PI)
        )
        _run(["ip", "address", "add", f"{address}/24", "dev", _DEVICE])
        _run(["ip", "link", "set", "dev", _DEVICE, "mtu", str(MTU), "up"])
    except BaseException:
        os.close(device)
        raise
    return device


def _in_namespace(path: str, work: Callable[[], int]) -> int:
    """Does something in a thread that has gone to a namespace, and ends with it."""

    def there() -> int:
        with Path(path).open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                number = ctypes.get_errno()
                raise OSError(number, f"entering a network namespace: {os.strerror(number)}")
        return work()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(there).result()


@functools.cache
def network_missing() -> str | None:
    """Why there can be no such network here, None where there can."""
    try:
        with Network(("a", "b"), seed=0) as network:
            sender, receiver = network.hosts["a"], network.hosts["b"]
            probe = _PROBE.format(receiver.address)
            done = subprocess.run(
                [*sender.prefix, sys.executable, "-c", probe],
                capture_output=True,
                text=True,
                check=False,
            )
            # The other host answers that nothing listens, which shows that packets go both ways.
            return None if "ConnectionRefused" in done.stdout else f"no packet came: {done.stderr}"
    except OSError as error:
        return str(error)
