"""Names below the folder of checkpoints, and the record of a job's folder.

Below the root are ``FOLDER/folder.json``, ``FOLDER/expected.json`` and ``FOLDER/ENDPOINT/``, which
a tmpfs covers when the folder is in memory, with ``live/files`` (of the rank's user), and of root
``held``, ``copies``, ``parity``, ``staged``, ``restore``, ``arriving`` and ``removed``. A part is a
directory ``STEP.EPOCH`` with ``files/``, ``manifest.json`` and ``part.json``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from agentlink.bounds import FOLDER
from agentlink.checkpoints import Folder, HoldingKind
from agentlink.values import Where
from checkpoints.ledger import Key
from checkpoints.values import MAX_STEP
from container_mgr.checkpoints.values import PartPlace
from container_mgr.values import AgentError

LIVE, RESTORE = "live", "restore"
FILES = "files"
"""In ``live``, which is a mount in the container: the program's folder, which it can remove."""
HELD, COPIES, PARITY, STAGED = "held", "copies", "parity", "staged"
ARRIVING, REMOVED = "arriving", "removed"
RECORD, RUN, STORED = "folder.json", "run.json", "stored.json"
EXPECTED = "expected.json"
"""Beside the record of a job's folder: the endpoints whose ranks will start from a fetch."""
KEY_BYTES = 32
"""Bytes of the key by which agents prove that they are of a job's run."""
MIN_SIZE_BYTES = 1 << 20
MAX_SIZE_BYTES = 1 << 50
MAX_FOLDERS = 4096
"""Jobs with folders on one server."""
_KEY = re.compile(r"(0|[1-9][0-9]{0,18})\.(0|[1-9][0-9]{0,18})")
MAX_RECORD = 4096


def check_folder(name: str) -> None:
    """Raise AgentError(invalid) unless ``name`` can be a job's folder."""
    if FOLDER.fullmatch(name) is None:
        raise AgentError(
            "invalid", name[:80], "is not the name of a folder", "a folder is NAME.8 hex digits"
        )


def is_folder(name: str) -> bool:
    """Return whether a job's folder can have this name."""
    return FOLDER.fullmatch(name) is not None


def check_key(obj: str, key: bytes) -> None:
    """Raise AgentError(invalid) for a key of another length; the key is in no message."""
    if len(key) != KEY_BYTES:
        raise AgentError("invalid", obj, f"the key of checkpoints must have {KEY_BYTES} bytes")


def check_terms(folder: Folder) -> None:
    """Raise AgentError(invalid) unless a folder can be made so."""
    check_folder(folder.name)
    check_key(folder.name, folder.key)
    if not MIN_SIZE_BYTES <= folder.size_bytes <= MAX_SIZE_BYTES:
        raise AgentError(
            "invalid", folder.name,
            f"its size must be {MIN_SIZE_BYTES} to {MAX_SIZE_BYTES} bytes",
            "change the size in the job's checkpoint section",
        )  # fmt: skip


def named(key: Key) -> str:
    """Return the name of a step's directory, ``STEP.EPOCH``."""
    return f"{key.step}.{key.epoch}"


def key_of(name: str) -> Key | None:
    """Read ``STEP.EPOCH``; None for another name."""
    match = _KEY.fullmatch(name)
    if match is None:
        return None
    key = Key(int(match[1]), int(match[2]))
    return key if max(key) <= MAX_STEP else None


def parents(place: PartPlace) -> tuple[str, ...]:
    """Return the directories from an endpoint's folder down to the step's."""
    match place.kind:
        case HoldingKind.OWN:
            return (HELD,)
        case HoldingKind.COPY:
            return (COPIES, str(place.rank))
        case HoldingKind.PARITY:
            return (PARITY, str(place.rank))
    raise AgentError("invalid", place.folder, f"a {place.kind} holding is in no folder")


def dump(folder: Folder) -> str:
    """Return the record of a job's folder."""
    return json.dumps(
        {
            "name": folder.name,
            "key": folder.key.hex(),
            "where": folder.where,
            "size": folder.size_bytes,
        }
    )


def load(path: Path) -> Folder:
    """Read a job's folder. Raises OSError, or ValueError for a damaged record."""
    with path.open("rb") as file:
        content = file.read(MAX_RECORD)
    try:
        fields = json.loads(content)
        folder = Folder(
            str(fields["name"]),
            bytes.fromhex(fields["key"]),
            Where(fields["where"]),
            int(fields["size"]),
        )
        check_terms(folder)
    except (KeyError, TypeError, AgentError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    return folder
