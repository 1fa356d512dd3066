from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest
from galileo_sandbox import channel, protocol
from galileo_sandbox.bubblewrap import program
from galileo_sandbox.channel import ResponseReader, SandboxTerminated, SharedMemory
from galileo_sandbox.confinement import this_machine
from galileo_sandbox.probe import unavailable_reason

MIB = 1 << 20


@pytest.fixture
def pipes() -> Iterator[tuple[ResponseReader, int, int]]:
    """A reader, and the ends of its pipes that sent code has: of answers, and of what it prints."""
    answers, printed = os.pipe(), os.pipe()
    yield ResponseReader(answers[0], printed[0], printed_max=100), answers[1], printed[1]
    for descriptor in (*answers, *printed):
        os.close(descriptor)


def next_answer(reader: ResponseReader) -> tuple[int, bytes]:
    return reader.next(sizes={protocol.MASK: range(2)}, until=lambda: float("inf"), look=int)


def test_answer_before_its_request_ends_the_process(pipes: tuple[ResponseReader, int, int]) -> None:
    """Else sent code could answer a later call in advance."""
    reader, answers, _ = pipes
    answer = protocol.ANSWER.pack(protocol.MASK, 1) + b"\xff"
    reader.begin()
    os.write(answers, answer + answer)
    assert next_answer(reader) == (protocol.MASK, b"\xff")
    with pytest.raises(SandboxTerminated):
        reader.begin()


def test_output_counts_from_one_request_to_the_next(pipes: tuple[ResponseReader, int, int]) -> None:
    reader, _, printed = pipes
    for _ in range(3):
        reader.begin()
        os.write(printed, b"x" * 100)
        assert reader.printed() == "x" * 100
    os.write(printed, b"x")
    with pytest.raises(SandboxTerminated):
        reader.printed()


def test_shared_memory_of_a_large_call_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "KEPT_BYTES", 2 * MIB)
    memory = SharedMemory()
    for head, kept in ((b"a" * MIB, MIB), (b"b" * 3 * MIB, 0), (b"c" * MIB, MIB)):
        memory.write("load", head)
        assert os.pread(memory.reader, len(head), 0) == head
        memory.trim()
        assert os.fstat(memory.reader).st_size == kept
    memory.close()


def test_sandbox_is_available_where_bubblewrap_works() -> None:
    """Else all tests that need it would be skipped for a mistake of ours."""
    if (bubblewrap := program()) is None or this_machine() is None:
        pytest.skip("bubblewrap is not installed, or these processors are unknown")
    words = [bubblewrap, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    if subprocess.run(words, capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("bubblewrap does not work on this machine")
    assert unavailable_reason() is None
