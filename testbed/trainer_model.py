"""Builds the trainer's nets, for 32x32x3 images, over one flat parameter vector.

The default is VGG16 (Simonyan and Zisserman 2015, configuration D) at a quarter of its width: 13
convolutions of 3x3 in five blocks, each block followed by 2x2 max pooling, then three dense
layers; here with 16 to 128 channels and dense layers of 256: 1,022,170 parameters. The others are
ResNet/x, one block repeated x times (PNNL, PMBS'17), and a net that is nearly all communication.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from measure.scaling.nets import Convolution, MaxPool, Net, ResidualBlock, shapes, vgg16
from testbed.trainer_data import Floats

VGG16 = vgg16()


def initial_parameters(seed: int, net: Net = VGG16) -> Floats:
    """Return the flat initial vector: He-normal weights and zero biases (He et al. 2015)."""
    random = np.random.default_rng(seed)
    parts = []
    for shape in shapes(net):
        scale = 0.0 if len(shape) == 1 else float(np.sqrt(2.0 / np.prod(shape[:-1])))
        parts.append(random.standard_normal(int(np.prod(shape))) * scale)
    return np.concatenate(parts).astype(np.float32)


def logits(tf: Any, parameters: Any, images: Any, net: Net = VGG16) -> Any:
    """Return the (n, 10) scores of ``images``; ``parameters`` is the flat vector."""
    parts = tf.split(parameters, [int(np.prod(shape)) for shape in shapes(net)])
    tensors = [tf.reshape(part, shape) for part, shape in zip(parts, shapes(net), strict=True)]
    layers = iter(zip(tensors[0::2], tensors[1::2], strict=True))
    x, flat = images, False
    for number, layer in enumerate(net.layers, start=1):
        if isinstance(layer, Convolution):
            x = tf.nn.relu(_convolution(tf, x, layers, layer.stride))
        elif isinstance(layer, ResidualBlock):
            inner = tf.nn.relu(_convolution(tf, x, layers))
            x = tf.nn.relu(x + layer.scale * _convolution(tf, inner, layers))
        elif isinstance(layer, MaxPool):
            x = tf.nn.max_pool2d(x, layer.side, layer.side, "VALID")
        else:
            x = x if flat else tf.reshape(x, (-1, int(np.prod(x.shape[1:]))))
            x, flat = _dense(tf, x, layers, last=number == len(net.layers)), True
    return x


def _convolution(tf: Any, x: Any, layers: Iterator[tuple[Any, Any]], stride: int = 1) -> Any:
    kernel, bias = next(layers)
    return tf.nn.bias_add(tf.nn.conv2d(x, kernel, stride, "SAME"), bias)


def _dense(tf: Any, x: Any, layers: Iterator[tuple[Any, Any]], last: bool) -> Any:
    kernel, bias = next(layers)
    sums = tf.linalg.matmul(x, kernel) + bias
    return sums if last else tf.nn.relu(sums)
