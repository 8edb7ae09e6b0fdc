"""Write a file that is whole or not there."""

import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path


def write(out: Path, parts: Iterable[str], mode: int = 0o600) -> None:
    """Write `parts` to `out` as UTF-8, by a temporary file in the same folder.

    Whoever opens `out` meanwhile finds what was there before. A new file has `mode`: if nothing
    else is said it can be read by its owner alone, as the trace file that it comes from. One that
    is replaced keeps its mode, which somebody has chosen. What is no regular file, such as
    ``/dev/stdout``, is written to as it is.

    Raises:
        OSError: it cannot be written. Nothing is left behind.
    """
    out = out.resolve()  # a link stays, and what it leads to is replaced
    if out.exists():
        status = out.stat()
        if not stat.S_ISREG(status.st_mode):
            with out.open("w", encoding="utf-8", newline="") as file:
                file.writelines(parts)
            return
        mode = stat.S_IMODE(status.st_mode)
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{out.name[:100]}.", dir=out.parent)
    except OSError as error:
        # Of the file that was asked for: nobody knows the temporary one.
        raise OSError(error.errno, error.strerror, str(out)) from None
    temporary = Path(name)
    try:
        with open(descriptor, "w", encoding="utf-8", newline="") as file:  # noqa: PTH123
            file.writelines(parts)
        temporary.chmod(mode)
        os.replace(temporary, out)  # noqa: PTH105 - the name that says what matters
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
