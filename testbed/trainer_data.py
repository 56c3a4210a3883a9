"""Loads the trainer's images and maps global sample indices to them. Pure NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

TRAIN_IMAGES = 1500
"""Training images of scikit-learn's 1,797 digits; the rest are for the test."""
IMAGE_SIDE = 32

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


def sample_rows(seed: int, first: int, count: int, images: int = TRAIN_IMAGES) -> Ints:
    """Return the image rows at the global sample indices [first, first + count).

    Every pass over the images is a permutation drawn from (seed, pass) alone.
    """
    rows = np.empty(count, dtype=np.int64)
    done = 0
    while done < count:
        pass_number, offset = divmod(first + done, images)
        take = min(count - done, images - offset)
        order = np.random.default_rng((seed, pass_number)).permutation(images)
        rows[done : done + take] = order[offset : offset + take]
        done += take
    return rows


def load_images() -> tuple[Floats, Ints]:
    """Return the digits as (n, 32, 32, 3) floats in [0, 1] and their labels."""
    from sklearn.datasets import load_digits  # noqa: PLC0415  (only the job's image has it)

    digits = load_digits()
    large = enlarge((digits.images / 16.0).astype(np.float32), IMAGE_SIDE)
    return np.repeat(large[..., None], 3, axis=3), digits.target.astype(np.int64)


def enlarge(images: Floats, side: int) -> Floats:
    """Resize square images (n, s, s) bilinearly to (n, side, side), corners aligned."""
    old = images.shape[1]
    position = np.linspace(0.0, old - 1.0, side, dtype=np.float32)
    low = np.minimum(position.astype(np.int64), old - 2)
    weight = np.zeros((side, old), dtype=np.float32)
    weight[np.arange(side), low] = 1.0 - (position - low)
    weight[np.arange(side), low + 1] = position - low
    rows = np.matmul(weight, images)
    large: Floats = np.matmul(rows, weight.T).astype(np.float32)
    return large
