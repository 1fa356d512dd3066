"""Real file systems that can be filled, broken and cut off. They need root."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

EXT4_IOC_SHUTDOWN = 0x8004587D
"""Stops all input and output of an ext4 at once: unwritten data is lost."""
FLAGS = {0: "journal flushed, data too", 1: "journal flushed", 2: "journal not flushed"}
LOOP_BYTES = 64 << 20
UNMOUNT_TIMEOUT_S = 10.0
TRIGGER = "trigger_fs_error"


class MemoryDisk:
    """A tmpfs of a bounded size; mounted within its `with` block.

    Raises:
        OSError: it cannot be mounted here.
    """

    def __init__(self, directory: Path, *, size_bytes: int) -> None:
        self.directory = directory
        self._size_bytes = size_bytes

    def __enter__(self) -> MemoryDisk:
        self.directory.mkdir(parents=True)
        options = f"size={self._size_bytes}"
        _run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.directory))
        return self

    def __exit__(self, *_: object) -> None:
        _unmount(self.directory)


class LoopDisk:
    """An ext4 in a file, on a loop device; mounted within its `with` block.

    Args:
        place: a directory for the image and the mount point.
        size_bytes: of the image.

    Raises:
        OSError: it cannot be made or mounted here.
    """

    def __init__(self, place: Path, *, size_bytes: int = LOOP_BYTES) -> None:
        self.directory = place / "disk"
        self._image = place / "image"
        self._size_bytes = size_bytes

    def __enter__(self) -> LoopDisk:
        self.directory.mkdir(parents=True)
        with self._image.open("wb") as image:
            image.truncate(self._size_bytes)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self.mount()
        return self

    def __exit__(self, *_: object) -> None:
        if os.path.ismount(self.directory):
            _unmount(self.directory)

    def mount(self) -> None:
        """Mount, replaying the file system's journal if necessary."""
        options = "loop,errors=remount-ro"
        _run("mount", "-o", options, str(self._image), str(self.directory))

    def unmount(self) -> None:
        """Unmount, waiting for a process that was just killed."""
        _unmount(self.directory)

    def cut_power(self, *, flag: int) -> None:
        """Fail every access until `repair`; unwritten data is lost.

        Args:
            flag: 0 writes out everything first, 1 the journal, 2 nothing.

        Raises:
            OSError: the kernel does not support it.
        """
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("<I", flag))
        finally:
            os.close(descriptor)

    def break_metadata(self) -> None:
        """Make the kernel find an error, so that it makes the file system read-only."""
        device = Path(_source(self.directory)).name
        (Path("/sys/fs/ext4") / device / TRIGGER).write_text("simulated damage\n")

    def repair(self) -> None:
        """Unmount, check and mount again; the file system must not be in use."""
        self.unmount()
        self.mount()

    def check_and_mount(self) -> None:
        """Check and mount after the kernel made it read-only."""
        self.unmount()
        subprocess.run(["e2fsck", "-p", "-f", str(self._image)], capture_output=True, check=False)
        self.mount()


def _run(*command: str) -> None:
    if os.geteuid() != 0:
        raise _refused(f"{command[0]} needs root")
    if shutil.which(command[0]) is None:
        raise _refused(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise _refused(f"{' '.join(command[:2])} failed: {done.stderr.strip()}")


def _unmount(directory: Path) -> None:
    deadline = time.monotonic() + UNMOUNT_TIMEOUT_S
    while True:
        done = subprocess.run(["umount", str(directory)], capture_output=True, text=True)
        if not done.returncode:
            return
        if time.monotonic() > deadline:
            subprocess.run(["umount", "-l", str(directory)], check=False)
            raise _refused(f"{directory} is in use: {done.stderr.strip()}")
        time.sleep(0.05)


def _source(directory: Path) -> str:
    """The device that is mounted on a directory."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        device, place, *_ = line.split()
        if place == str(directory):
            return device
    raise _refused(f"nothing is mounted on {directory}")


def _refused(reason: str) -> OSError:
    return OSError(errno.ENOTSUP, reason)
