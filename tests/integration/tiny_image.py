"""A container image of a few programs of this machine: no registry, no download."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

PROGRAMS = (
    "sh",
    "cat",
    "sleep",
    "ping",
    "touch",
    "ls",
    "env",
    "dd",
    "ln",
    "head",
    "tr",
    "yes",
    "mkdir",
    "mv",
    "rm",
)


def tiny_image_tar(
    texts: Mapping[str, str] | None = None, programs: Sequence[str] = PROGRAMS
) -> bytes:
    """Return a root file system with programs in /bin, their libraries, and files of ``texts``."""
    files: dict[str, Path] = {}
    for name in programs:
        found = shutil.which(name)
        assert found is not None, f"{name} is not installed"
        files[f"bin/{name}"] = Path(found).resolve()
        listed = subprocess.run(["ldd", found], capture_output=True, text=True, check=True).stdout
        for word in listed.split():
            if word.startswith("/"):
                files[word.lstrip("/")] = Path(word).resolve()
    built = tempfile.TemporaryDirectory(prefix="ll-attack-")
    files["bin/attack"] = Path(built.name) / "attack"
    source = Path(__file__).with_name("attack.c")
    command = ["cc", "-O1", "-static", "-o", str(files["bin/attack"]), str(source)]
    subprocess.run(command, check=True, timeout=60)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, path in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.mode, info.size = 0o755, path.stat().st_size
            with path.open("rb") as handle:
                tar.addfile(info, handle)
        for name in ("tmp", "run", "proc", "sys", "dev", "etc"):
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(info)
        for name, text in (texts or {}).items():
            info = tarfile.TarInfo(name)
            info.mode, info.size = 0o644, len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    built.cleanup()
    return out.getvalue()
