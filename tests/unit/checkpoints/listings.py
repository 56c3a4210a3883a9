"""Listings of folders, as ``(path, bytes)``; folders are left out where files tell them.

* ``ORBAX``: orbax-checkpoint 0.12.8, ``CheckpointManager`` with ``StandardSave``, one process.
* ``KERAS``: Keras 3.15.1, ``BackupAndRestore(save_freq=3, double_checkpoint=True)``.
* ``DCP``: PyTorch's ``FileSystemWriter``, names from its source (``.distcp``, ``.metadata``).
"""

from __future__ import annotations

from checkpoints.rules import EntryKind, FolderEntry

ORBAX_METADATA = (
    b'{"item_handlers": {"default": "orbax.checkpoint._src.handlers.'
    b'standard_checkpoint_handler.StandardCheckpointHandler"}, "metrics": {}, '
    b'"performance_metrics": {}, "init_timestamp_nsecs": 1795453044237006139, '
    b'"commit_timestamp_nsecs": 1795453044327984884, "custom_metadata": {}}'
)
ORBAX = [
    ("20/_CHECKPOINT_METADATA", 275),
    ("20/commit_success.txt", 55),
    ("20/default/_METADATA", 397),
    ("20/default/commit_success.txt", 84),
    ("20/default/d/281b4215c98e0ce78d74d36b6205e445", 279),
    ("20/default/manifest.ocdbt", 113),
    ("20/default/ocdbt.process_0/d/035522f89a9d214d25a725f91e03f932", 199),
    ("20/default/ocdbt.process_0/d/1f9b608e941bc4f43113227a4f2e0404", 258),
    ("20/default/ocdbt.process_0/d/524ac7520ff9d760b2d3a3ab3795e06b", 279),
    ("20/default/ocdbt.process_0/d/b50fd30d378d1a827f0c1dbb047bdb0c", 172),
    ("20/default/ocdbt.process_0/manifest.ocdbt", 237),
]
KERAS = [
    ("latest.weights.h5", 15_600),
    ("latest.weights.h5.bkp", 15_600),
    ("training_metadata.json", 24),
    ("training_metadata.json.bkp", 24),
]
DCP = [("step_100/.metadata", 1204), ("step_100/__0_0.distcp", 70_144)]
DCP_OTHER = [("step_100/__1_0.distcp", 70_144), ("step_100/__1_1.distcp", 512)]


def entries(files: list[tuple[str, int]]) -> list[FolderEntry]:
    """Make a listing with its folders."""
    folders = {path.rsplit("/", n)[0] for path, _ in files for n in range(1, path.count("/") + 1)}
    return [FolderEntry(folder, EntryKind.FOLDER) for folder in sorted(folders)] + [
        FolderEntry(path, EntryKind.FILE, size) for path, size in files
    ]
