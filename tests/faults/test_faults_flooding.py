"""Floods as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_a_flood_that_fails_ends_and_says_why_though_its_input_stays_open():
    command = [sys.executable, "-m", "faults.flooding", "watchers", "127.0.0.1:1", "4"]
    pipe = subprocess.PIPE
    environment = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
    ) as flood:
        try:
            assert flood.wait(120) == 1
            assert "UNAVAILABLE" in flood.stderr.read()
            assert flood.stdout.read() == ""
        finally:
            flood.kill()
