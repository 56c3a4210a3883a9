"""Counters of nets against published figures and against tensors' shapes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from measure.scaling.counts import Tally, alexnet, googlenet, reference_alexnet
from measure.scaling.nets import (
    BLOCKS,
    Convolution,
    Counts,
    MaxPool,
    ResidualBlock,
    count,
    net,
    resnet,
    shapes,
)


@pytest.mark.parametrize(
    ("made", "batch", "intensity"),
    [(alexnet, 256, 5.9), (alexnet, 512, 11.9), (googlenet, 256, 500.0), (googlenet, 512, 1004.0)],
)
def test_nets_have_the_published_intensity(
    made: Callable[[], Counts], batch: int, intensity: float
) -> None:
    assert made().intensity(batch) == pytest.approx(intensity, rel=0.02)


def test_the_reference_alexnet_is_another_net() -> None:
    """With normalisations and two towers it has more activations and fewer parameters."""
    assert reference_alexnet().intensity(256) == pytest.approx(8.08, rel=0.01)


def test_activations_of_a_small_net_by_hand() -> None:
    """16 x 16 x 4: convolution and ReLU, a pool to 8 x 8, a split for 2 readers, 10 units."""
    tally = Tally(16, 3)
    tally.convolution(4, 3, pad=1)
    tally.pool(2, 2)
    tally.split(2)
    tally.dense(10)
    assert tally.counts.activations == 2 * 1024 + 256 + 2 * 256 + 10


def test_activations_of_a_block_by_hand() -> None:
    """A block's array: split in two, two convolutions, the sum, two ReLUs."""
    more = count(resnet(2)).activations - count(resnet(1)).activations
    assert more == 7 * 16 * 16 * 16


def test_parameters_of_the_reference_nets() -> None:
    assert reference_alexnet().parameters == 60_965_224
    assert alexnet().parameters == 62_378_344
    assert googlenet().parameters == 6_998_552


def test_flops_of_the_reference_nets() -> None:
    """0.72 and 1.6 thousand million multiplications with an addition."""
    assert reference_alexnet().flops / 2 == pytest.approx(0.724e9, rel=0.01)
    assert googlenet().flops / 2 == pytest.approx(1.58e9, rel=0.01)


def test_vgg16_is_the_demos() -> None:
    assert count(net("vgg16")).parameters == 1_022_170
    assert next(shape for shape in shapes(net("vgg16")) if len(shape) == 2) == (128, 256)


def test_intensity_spans_three_decades() -> None:
    intensities = [
        count(resnet(x)).intensity(batch / ranks)
        for x in BLOCKS
        for batch in (12, 48, 192)
        for ranks in (1, 2, 4, 6)
    ]
    assert max(intensities) / min(intensities) >= 1000


def test_a_block_adds_compute_and_few_parameters() -> None:
    counts = [count(resnet(x)) for x in BLOCKS]
    assert counts[-1].flops > 20 * counts[0].flops
    assert counts[-1].parameters < 1.3 * counts[0].parameters


def test_one_net_is_nearly_all_communication() -> None:
    vgg, allcomm = count(net("vgg16")), count(net("allcomm"))
    assert allcomm.parameters == pytest.approx(vgg.parameters, rel=0.05)
    assert allcomm.flops < vgg.flops / 20


@pytest.mark.parametrize("name", ["vgg16", "allcomm", "resnet1", "resnet7"])
def test_shapes_follow_the_layers(name: str) -> None:
    made = net(name)
    weights = [shape for shape in shapes(made) if len(shape) > 1]
    per_layer = {ResidualBlock: 2, MaxPool: 0}
    assert len(weights) == sum(per_layer.get(type(layer), 1) for layer in made.layers)
    assert weights[-1][-1] == 10
    convolutions = [layer for layer in made.layers if isinstance(layer, Convolution)]
    assert count(made).activations > 256 * len(convolutions)


@pytest.mark.parametrize("name", ["resnet0", "resnet257", "resnet01", "resnet", "lenet", ""])
def test_another_net_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="unknown net"):
        net(name)
