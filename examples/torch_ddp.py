"""Data-parallel training with PyTorch: NCCL where there is a GPU, gloo on CPUs.

    lightloom submit -f examples/torch_ddp.yaml

lightloom writes RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, hence ``env://`` finds
the other ranks, and the environment of NCCL and gloo, hence neither needs to be told an interface.
``torchrun train.py`` works as well: its PET_* variables are set.

The model is VGG16 for 32x32 images with ``--width`` times the usual channels. With ``--data`` it
reads a data set of ``examples/make_images.py``, else the images are drawn around ten fixed
patterns, so that there is something to learn and nothing to download. With ``--checkpoint`` rank 0
writes model and optimizer there, and a later run continues from it. Prints one JSON object a line;
rank 0 speaks for all, every rank says how it ended.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CHANNELS = (64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M")
CLASSES = 10
READY = Path("/run/lightloom/ready")
"""Made when start-up is over: from then on a GPU's stand-in gets the CPU share of one GPU."""


def vgg16(width: float) -> nn.Module:
    """VGG16 (Simonyan and Zisserman 2015, configuration D) without its large dense layers."""
    layers: list[nn.Module] = []
    depth = 3
    for entry in CHANNELS:
        if entry == "M":
            layers.append(nn.MaxPool2d(2))
        else:
            channels = max(1, round(int(entry) * width))
            convolution = nn.Conv2d(depth, channels, 3, padding=1)
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
            layers += [convolution, nn.ReLU(inplace=True)]
            depth = channels
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(depth, CLASSES))


class DrawnImages:
    """Images without a data set: one of ten patterns each, and noise."""

    def batch(self, step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this rank's part of a step: ``size`` x 3 x 32 x 32 images, and their labels."""
        patterns = torch.randn(CLASSES, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        random = torch.Generator().manual_seed(1 + step * dist.get_world_size() + dist.get_rank())
        labels = torch.randint(CLASSES, (size,), generator=random)
        return patterns[labels] + 0.5 * torch.randn(size, 3, 32, 32, generator=random), labels


class StoredImages:
    """The images of a folder that ``examples/make_images.py`` wrote; read as they are needed."""

    def __init__(self, folder: Path) -> None:
        self._images = np.load(folder / "images.npy", mmap_mode="r")
        self._labels = np.load(folder / "labels.npy")

    def batch(self, step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this rank's part of a step: ``size`` x 3 x 32 x 32 images, and their labels."""
        first = (step * dist.get_world_size() + dist.get_rank()) * size
        rows = np.arange(first, first + size) % len(self._labels)
        images = torch.from_numpy(self._images[rows]).permute(0, 3, 1, 2).float() / 64 - 2
        return images, torch.from_numpy(self._labels[rows])


def emit(event: str, **fields: Any) -> None:
    """Print one JSON line."""
    print(json.dumps({"event": event, "rank": dist.get_rank(), **fields}), flush=True)


def save(path: Path, **state: Any) -> None:
    """Replace a checkpoint as a whole: a crash leaves the old one or the new one."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def load(path: Path | None) -> dict[str, Any] | None:
    """Return rank 0's checkpoint on every rank: the others need not see the file."""
    kept = [None]
    if path and dist.get_rank() == 0 and path.exists():
        kept = [torch.load(path, map_location="cpu")]
    dist.broadcast_object_list(kept)
    return kept[0]


def train(options: argparse.Namespace, device: torch.device) -> None:
    """Train; the gradients are averaged over all ranks by DistributedDataParallel."""
    torch.manual_seed(0)
    data = StoredImages(options.data) if options.data else DrawnImages()
    local = [device] if device.type == "cuda" else None
    model = DistributedDataParallel(vgg16(options.width).to(device), device_ids=local)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate, momentum=0.9)
    parameters = sum(p.numel() for p in model.parameters())
    first = 0
    if kept := load(options.checkpoint):
        model.module.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        first = kept["step"] + 1
    emit(
        "start",
        ranks=dist.get_world_size(),
        backend=dist.get_backend(),
        parameters=parameters,
        step=first,
    )
    loss = torch.zeros(())
    for step in range(first, options.steps):
        begin = time.perf_counter()
        images, labels = (part.to(device) for part in data.batch(step, options.batch))
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        dist.all_reduce(loss := loss.detach())
        loss /= dist.get_world_size()
        if step == first and READY.parent.is_dir():
            READY.touch()
        if dist.get_rank() == 0:
            emit("step", step=step, loss=loss.item(), step_s=time.perf_counter() - begin)
            last = step == options.steps - 1
            if options.checkpoint and (last or (step + 1) % options.checkpoint_every == 0):
                save(
                    options.checkpoint,
                    model=model.module.state_dict(),
                    optimizer=optimizer.state_dict(),
                    step=step,
                )
                emit("checkpoint", step=step, path=str(options.checkpoint))
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    emit("end", loss=loss.item(), weights=weights.double().sum().item())


def main() -> None:
    """Find the other ranks, train, part from them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=48, help="images a step and rank")
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--learning-rate", type=float, default=0.02)
    parser.add_argument("--data", type=Path, help="folder of a data set")
    parser.add_argument("--checkpoint", type=Path, help="file to write, and to continue from")
    parser.add_argument("--checkpoint-every", type=int, default=20, help="steps")
    parser.add_argument("--timeout", type=float, default=120.0, help="of a collective, seconds")
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    # Longer than any planned dark time: a move of the job's light is no failure of a rank.
    timeout = timedelta(seconds=options.timeout)
    dist.init_process_group("nccl" if gpu else "gloo", init_method="env://", timeout=timeout)
    try:
        train(options, device)
        dist.barrier()  # rank 0 keeps the store that the others leave through
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
