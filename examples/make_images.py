"""Writes a small data set for the examples: as large as CIFAR-10, drawn with a fixed seed.

    python3 examples/make_images.py /srv/images

Makes ``images.npy`` (N x 32 x 32 x 3, uint8) and ``labels.npy`` (N, int64) in the folder: ten fixed
patterns with noise, so that there is something to learn and nothing to download. The same seed
writes the same bytes. Needs NumPy only.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

CLASSES = 10
SHAPE = (32, 32, 3)
CHUNK = 4096
"""Images drawn at once: memory stays small for any number of images."""


def write(folder: Path, count: int, seed: int) -> None:
    """Write ``count`` images and their labels. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    patterns = random.standard_normal((CLASSES, *SHAPE), dtype=np.float32)
    labels = random.integers(CLASSES, size=count)
    images = np.lib.format.open_memmap(
        folder / "images.npy", mode="w+", dtype=np.uint8, shape=(count, *SHAPE)
    )
    for first in range(0, count, CHUNK):
        wanted = labels[first : first + CHUNK]
        noise = random.standard_normal((len(wanted), *SHAPE), dtype=np.float32)
        scaled = 128 + 40 * (patterns[wanted] + 0.5 * noise)
        images[first : first + CHUNK] = np.clip(scaled, 0, 255).astype(np.uint8)
    images.flush()
    np.save(folder / "labels.npy", labels)


def main() -> None:
    """Write the data set that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    write(options.folder, options.images, options.seed)
    print(f"{options.folder}: {options.images} images")


if __name__ == "__main__":
    main()
