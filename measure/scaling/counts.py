"""Counts activations and parameters of convolutional nets from their shapes.

Activations are the elements of the outputs of all layers that Caffe runs: convolutions, ReLUs,
normalisations, pools, concatenations, dense layers, dropouts, and the splits that Caffe inserts
where several layers read one output (as many outputs as readers). The input and the loss do not
count. Caffe counts the memory of a net's data so, whether a layer works in place or not.

The check is the workload intensity that PNNL gives (PMBS'17) for 256 and 512 images: AlexNet 5.9
and 11.9, GoogLeNet 500 and 1004. It holds with AlexNet as one tower without normalisations; the
paper does not name the AlexNet that it counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from measure.scaling.nets import Counts


@dataclass(slots=True)
class Tally:
    """The array that flows through a net, and the sums so far."""

    side: int
    channels: int
    parameters: int = 0
    activations: int = 0
    flops: int = 0

    @property
    def elements(self) -> int:
        """Elements of the array here."""
        return self.side * self.side * self.channels

    def convolution(
        self, channels: int, kernel: int, *, stride: int = 1, pad: int = 0, groups: int = 1
    ) -> None:
        """Go through a square convolution with bias, and its ReLU."""
        weights = kernel * kernel * self.channels // groups * channels
        self.side = (self.side + 2 * pad - kernel) // stride + 1
        self.channels = channels
        self.parameters += weights + channels
        self.flops += 2 * weights * self.side * self.side
        self.activations += 2 * self.elements

    def pool(self, kernel: int, stride: int, pad: int = 0) -> None:
        """Go through a pool; like Caffe's, its last window may reach over the edge."""
        self.side = -(-(self.side + 2 * pad - kernel) // stride) + 1
        self.activations += self.elements

    def normalisation(self) -> None:
        """Go through a local response normalisation."""
        self.activations += self.elements

    def dense(self, units: int) -> None:
        """Go through a fully connected layer with bias, without a ReLU."""
        weights = self.elements * units
        self.side, self.channels = 1, units
        self.parameters += weights + units
        self.flops += 2 * weights
        self.activations += units

    def relu(self) -> None:
        """Go through a ReLU."""
        self.activations += self.elements

    def dropout(self) -> None:
        """Go through a dropout."""
        self.activations += self.elements

    def split(self, readers: int) -> None:
        """Hand the array to several layers."""
        self.activations += readers * self.elements

    def inception(self, widths: Sequence[int]) -> None:
        """Go through an inception module: 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool's 1x1."""
        one, three_from, three, five_from, five, pooled = widths
        self.split(4)
        channels, joined = self.channels, one + three + five + pooled
        self.convolution(one, 1)
        for inner, outer, kernel in ((three_from, three, 3), (five_from, five, 5)):
            self.channels = channels
            self.convolution(inner, 1)
            self.convolution(outer, kernel, pad=kernel // 2)
        self.channels = channels
        self.pool(3, 1, 1)
        self.convolution(pooled, 1)
        self.channels = joined
        self.activations += self.elements

    @property
    def counts(self) -> Counts:
        """The sums."""
        return Counts(self.parameters, self.activations, self.flops)


def alexnet() -> Counts:
    """Count AlexNet (Krizhevsky et al. 2012) for 227x227: one tower, no normalisations."""
    return _alexnet(1, normalised=False)


def reference_alexnet() -> Counts:
    """Count AlexNet as Caffe's reference has it: two towers (groups) and normalisations."""
    return _alexnet(2, normalised=True)


def _alexnet(towers: int, *, normalised: bool) -> Counts:
    tally = Tally(227, 3)
    tally.convolution(96, 11, stride=4)
    if normalised:
        tally.normalisation()
    tally.pool(3, 2)
    tally.convolution(256, 5, pad=2, groups=towers)
    if normalised:
        tally.normalisation()
    tally.pool(3, 2)
    tally.convolution(384, 3, pad=1)
    tally.convolution(384, 3, pad=1, groups=towers)
    tally.convolution(256, 3, pad=1, groups=towers)
    tally.pool(3, 2)
    for _ in range(2):
        tally.dense(4096)
        tally.relu()
        tally.dropout()
    tally.dense(1000)
    return tally.counts


def googlenet() -> Counts:
    """Count GoogLeNet (Szegedy et al. 2014) without auxiliary classifiers, for 224x224."""
    tally = Tally(224, 3)
    tally.convolution(64, 7, stride=2, pad=3)
    tally.pool(3, 2)
    tally.normalisation()
    tally.convolution(64, 1)
    tally.convolution(192, 3, pad=1)
    tally.normalisation()
    tally.pool(3, 2)
    for number, widths in enumerate(_INCEPTIONS):
        if number in (2, 7):
            tally.pool(3, 2)
        tally.inception(widths)
    tally.pool(7, 1)
    tally.dropout()
    tally.dense(1000)
    return tally.counts


_INCEPTIONS = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)
