"""Defines VGG16 at a quarter of its width, for 32x32x3 images, over one flat parameter vector.

Simonyan and Zisserman (2015), configuration D: 13 convolutions of 3x3 in five blocks, each block
followed by 2x2 max pooling, then three dense layers; here with 16 to 128 channels and dense
layers of 256: 1,022,170 parameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from testbed.trainer_data import Floats

CLASSES = 10
BLOCKS = ((2, 16), (2, 32), (3, 64), (3, 128), (3, 128))
"""Convolutions and channels of each block."""
DENSE = (256, 256)


def parameter_shapes() -> list[tuple[int, ...]]:
    """Return the shapes of all weights and biases, layer by layer."""
    shapes: list[tuple[int, ...]] = []
    channels = 3
    for convolutions, width in BLOCKS:
        for _ in range(convolutions):
            shapes += [(3, 3, channels, width), (width,)]
            channels = width
    for width in (*DENSE, CLASSES):
        shapes += [(channels, width), (width,)]
        channels = width
    return shapes


def initial_parameters(seed: int) -> Floats:
    """Return the flat initial vector: He-normal weights and zero biases (He et al. 2015)."""
    random = np.random.default_rng(seed)
    parts = []
    for shape in parameter_shapes():
        scale = 0.0 if len(shape) == 1 else float(np.sqrt(2.0 / np.prod(shape[:-1])))
        parts.append(random.standard_normal(int(np.prod(shape))) * scale)
    return np.concatenate(parts).astype(np.float32)


def logits(tf: Any, parameters: Any, images: Any) -> Any:
    """Return the (n, 10) scores of ``images``; ``parameters`` is the flat vector."""
    shapes = parameter_shapes()
    parts = tf.split(parameters, [int(np.prod(shape)) for shape in shapes])
    tensors = [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]
    layers = iter(zip(tensors[0::2], tensors[1::2], strict=True))
    x = images
    for convolutions, _ in BLOCKS:
        for _ in range(convolutions):
            kernel, bias = next(layers)
            x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias))
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    x = tf.reshape(x, (-1, BLOCKS[-1][1]))
    for _ in DENSE:
        kernel, bias = next(layers)
        x = tf.nn.relu(tf.linalg.matmul(x, kernel) + bias)
    kernel, bias = next(layers)
    return tf.linalg.matmul(x, kernel) + bias
