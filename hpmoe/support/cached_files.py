"""Kept files: bytes or JSON objects in the user's cache folder, read with suspicion and put in place in one step.

Whoever may write that folder could have put anything in a file's place: what is read is a regular file of bounded size, and
what it holds is still to be checked by whoever asked for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from hpmoe.support.host import cache_folder

Fields = dict[str, Any]  # a JSON object

MOST_BYTES = 16 << 20


def read_object(path: Path) -> Fields:
    """Returns the JSON object in a file.

    Raises:
        OSError: it cannot be read, or it or its folder belongs to another user.
        ValueError: it is no regular file, too large, or no JSON object.
    """
    try:
        found = json.loads(read_bytes(path))
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__}, not an object")
    return found


def private_folder(folder: Path) -> None:
    """Makes a folder that only this user can access, and its parent folders below the cache folder.

    Existing folders of this user are changed to mode 0700.

    Raises:
        PermissionError: a folder belongs to another user.
        OSError: a folder cannot be made.
    """
    with contextlib.suppress(OSError):  # no cache folder is known
        if cache_folder() in folder.parents:
            private_folder(folder.parent)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    _check_folder(folder)


def _check_folder(folder: Path) -> None:
    found = folder.stat()
    _check_owner(folder, found)
    if found.st_mode & 0o077:
        try:
            folder.chmod(0o700)
        except OSError:
            if found.st_mode & 0o022:  # others may have put files there
                raise


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to user {found.st_uid}, expected user {os.geteuid()}; remove it, or set "
                              "XDG_CACHE_HOME to a folder of your own")


def read_bytes(path: Path) -> bytes:
    """Returns the bytes of a file; raises OSError and ValueError as `read_object` does."""
    _check_folder(path.parent)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO is open at once, without a writer
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no regular file")
        _check_owner(path, os.fstat(descriptor))
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(MOST_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES >> 20} MiB")
    return content


def write_object(path: Path, fields: Fields) -> None:
    """Puts a JSON object in place, for its user alone, its folder too: whoever reads it finds the old one or the new one.

    Raises:
        OSError: it cannot be written.
    """
    write_bytes(path, (json.dumps(fields, indent=1, default=int) + "\n").encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Puts bytes in place, as `write_object` does."""
    private_folder(path.parent)
    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")  # readable by this user only
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(partial, path)
    finally:
        Path(partial).unlink(missing_ok=True)


def keep_latest(folder: Path, most_bytes: int) -> None:
    """Removes the least recently used files of a folder until the others have at most `most_bytes`.

    Another process may do the same at the same time, or write.
    """
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            at = path.lstat()
            found.append((at.st_mtime_ns, at.st_size, path))
    left = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if left <= most_bytes:
            break
        path.unlink(missing_ok=True)
        left -= size
