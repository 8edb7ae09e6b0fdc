"""Children that load a model and generate on a worker; this process does nothing of the kind.

python children.py METHOD CHECKPOINT FOLDER: each child leaves its steps in FOLDER.
"""

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKPOINT, FOLDER = sys.argv[2:4] if len(sys.argv) > 3 else ("", "")


def ask(checkpoint: str, folder: str) -> None:
    # Here and not above: only the children have MLX.
    from asking import PROMPTS, Asker, on_thread

    asker = Asker(checkpoint)
    on_thread(asker.ask, "worker", PROMPTS[0])
    (Path(folder) / f"{os.getpid()}.json").write_text(json.dumps(asker.steps))


def in_a_process(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    process = context.Process(target=ask, args=(CHECKPOINT, FOLDER))
    process.start()
    process.join()
    sys.exit(process.exitcode)


def in_a_command() -> None:
    command = [sys.executable, __file__, "here", CHECKPOINT, FOLDER]
    sys.exit(subprocess.run(command, check=False).returncode)


METHODS: dict[str, Callable[[], None]] = {
    "here": lambda: ask(CHECKPOINT, FOLDER),
    "spawn": lambda: in_a_process("spawn"),
    "forkserver": lambda: in_a_process("forkserver"),
    "subprocess": in_a_command,
}

if __name__ == "__main__":
    METHODS[sys.argv[1]]()
