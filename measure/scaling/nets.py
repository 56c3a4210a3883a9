"""The nets of the demo's trainer as layers, and what counting needs of any net.

Standard library only: the trainer's image contains this file and builds its tensors from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

SIDE, COLOURS, CLASSES = 32, 3, 10
"""Input images are 32x32x3; a net distinguishes 10 classes."""
BLOCKS = (1, 2, 4, 8, 16, 32)
"""Numbers of blocks of ResNet/x as PNNL measured it (PMBS'17)."""


@dataclass(slots=True, frozen=True)
class Convolution:
    """3x3, same padding, with bias and ReLU."""

    channels: int
    stride: int = 1


@dataclass(slots=True, frozen=True)
class MaxPool:
    """Largest of ``side`` x ``side``."""

    side: int = 2


@dataclass(slots=True, frozen=True)
class ResidualBlock:
    """Two 3x3 convolutions with a short cut: x + scale * conv(relu(conv(x))), then ReLU.

    It has no batch normalisation, whose statistics would be all-reduces of their own; the scale
    keeps the variance of a deep net.
    """

    scale: float


@dataclass(slots=True, frozen=True)
class Dense:
    """Fully connected, with bias; the last one of a net has no ReLU."""

    units: int


Layer = Convolution | MaxPool | ResidualBlock | Dense


@dataclass(slots=True, frozen=True)
class Net:
    """A net for the trainer's images."""

    name: str
    layers: tuple[Layer, ...]


@dataclass(slots=True, frozen=True)
class Counts:
    """Figures of a net for one image."""

    parameters: int
    activations: int
    """Elements of the outputs of all layers, ReLUs included; one for each layer that reads it."""
    flops: int
    """Operations of the forward pass: two for each multiplication with an addition."""

    def intensity(self, batch: float) -> float:
        """Return PNNL's workload intensity: activations of a batch over parameters."""
        return self.activations * batch / self.parameters


def vgg16() -> Net:
    """Return VGG16 (configuration D) at a quarter of its width, for 32x32 images."""
    layers: list[Layer] = []
    for convolutions, width in ((2, 16), (2, 32), (3, 64), (3, 128), (3, 128)):
        layers += [Convolution(width)] * convolutions + [MaxPool()]
    return Net("vgg16", (*layers, Dense(256), Dense(256), Dense(CLASSES)))


def resnet(blocks: int, width: int = 16) -> Net:
    """Return ResNet/x: one block, repeated.

    Blocks are narrow at 16x16: they add activations and compute but few parameters. The first
    dense layer has most of the parameters, hence the gradient is nearly as long for every x.
    """
    if blocks < 1:
        raise ValueError(f"ResNet/x has 1 block or more, not {blocks}")
    body = (ResidualBlock(blocks**-0.5),) * blocks
    head = (Dense(128), Dense(CLASSES))
    return Net(f"resnet{blocks}", (Convolution(width, stride=2), *body, *head))


def allcomm() -> Net:
    """Return a net that is nearly all communication: dense layers on a pooled image."""
    return Net("allcomm", (MaxPool(4), Dense(1024), Dense(768), Dense(CLASSES)))


def net(name: str) -> Net:
    """Return ``vgg16``, ``allcomm`` or ``resnet1`` to ``resnet256``. Raises ValueError."""
    if name == "vgg16":
        return vgg16()
    if name == "allcomm":
        return allcomm()
    found = re.fullmatch(r"resnet([1-9]\d{0,2})", name)
    if not found or int(found[1]) > 256:
        raise ValueError(f"unknown net {name[:40]!r}: use vgg16, allcomm, or resnet1 to resnet256")
    return resnet(int(found[1]))


def shapes(of: Net) -> list[tuple[int, ...]]:
    """Return the shapes of all weights and biases, layer by layer."""
    found: list[tuple[int, ...]] = []
    side, channels = SIDE, COLOURS
    for layer in of.layers:
        if isinstance(layer, Convolution):
            found += [(3, 3, channels, layer.channels), (layer.channels,)]
            side, channels = -(-side // layer.stride), layer.channels
        elif isinstance(layer, ResidualBlock):
            found += [(3, 3, channels, channels), (channels,)] * 2
        elif isinstance(layer, MaxPool):
            side //= layer.side
        else:
            inputs = side * side * channels
            found += [(inputs, layer.units), (layer.units,)]
            side, channels = 1, layer.units
    return found


def count(of: Net) -> Counts:
    """Count a net for one image."""
    side, channels = SIDE, COLOURS
    activations, flops = 0, 0
    for layer in of.layers:
        if isinstance(layer, Convolution):
            side = -(-side // layer.stride)
            flops += 2 * 9 * channels * layer.channels * side * side
            channels = layer.channels
            activations += 2 * side * side * channels  # and its ReLU
        elif isinstance(layer, ResidualBlock):
            flops += 2 * 2 * 9 * channels * channels * side * side
            # Split in two, both convolutions, the sum, and two ReLUs.
            activations += 7 * side * side * channels
        elif isinstance(layer, MaxPool):
            side //= layer.side
            activations += side * side * channels
        else:
            flops += 2 * side * side * channels * layer.units
            side, channels = 1, layer.units
            activations += layer.units if layer is of.layers[-1] else 2 * layer.units
    return Counts(sum(map(prod, shapes(of))), activations, flops)
