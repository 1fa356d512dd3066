"""One target under libFuzzer, guided by the coverage of Galileo's Python code; a process for it.

`GALILEO_FUZZ_TARGET=token python -m fuzzing.guided [libFuzzer's options] CORPUS_DIRECTORY`
"""

from __future__ import annotations

import os
import sys

import atheris

with atheris.instrument_imports(include=["galileo"]):
    from fuzzing.table import named
    from fuzzing.targets import refused


def main() -> None:
    target = named(os.environ["GALILEO_FUZZ_TARGET"])

    def once(data: bytes) -> None:
        refused(target, data)

    # libFuzzer starts itself again by this name when it merges.
    atheris.Setup([os.environ["GALILEO_FUZZ_PROGRAM"], *sys.argv[1:]], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
