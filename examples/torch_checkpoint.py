"""PyTorch that survives a dead GPU: torch.save, os.replace, and lightloom does the rest.

    lightloom submit -f examples/torch_checkpoint.yaml

Every rank writes what it needs to go on to a folder of its own, LIGHTLOOM_CHECKPOINT_DIR, which is
memory or disk of its server: ``step-N.pt.tmp`` is renamed to ``step-N.pt`` when it is whole. When a
GPU or a server dies, lightloom starts all ranks again, the dead one on a spare, with
LIGHTLOOM_RESTORE_STEP. The same program runs without lightloom: then it starts at 0.

Model and images are those of ``torch_ddp.py``. The images are a function of the step, so the loss
goes on as if nothing had happened. Prints one JSON object a line.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_ddp import READY, DrawnImages, emit, vgg16

KEEP = 2


class Training:
    """Model, optimizer and images of one rank."""

    def __init__(self, width: float, learning_rate: float, batch: int) -> None:
        torch.manual_seed(0)
        self.model = vgg16(width)
        self._parallel = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=learning_rate, momentum=0.9)
        self._data = DrawnImages()
        self._batch = batch

    def step(self, number: int) -> float:
        """Train one step; return the loss over all ranks."""
        images, labels = self._data.batch(number, self._batch)
        loss = nn.functional.cross_entropy(self._parallel(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        dist.all_reduce(loss := loss.detach())
        return float(loss / dist.get_world_size())

    def run(self, first: int, options: argparse.Namespace, save: Any) -> None:
        """Train from step ``first``; call ``save`` with the number of trained steps when due."""
        emit("start", ranks=dist.get_world_size(), step=first)
        loss = 0.0
        for number in range(first, options.steps):
            begin = time.perf_counter()
            loss = self.step(number)
            if number == first and READY.parent.is_dir():
                READY.touch()
            emit("step", step=number, loss=loss, step_s=time.perf_counter() - begin)
            if (number + 1) % options.checkpoint_every == 0:
                begin = time.perf_counter()
                save(number + 1)
                emit("checkpoint", step=number + 1, blocked_s=time.perf_counter() - begin)
        weights = torch.cat([p.detach().flatten() for p in self.model.parameters()])
        emit("end", loss=loss, weights=weights.double().sum().item())


def save(folder: Path, step: int, state: Mapping[str, Any]) -> None:
    """Write a checkpoint as a whole and remove the oldest."""
    target = folder / f"step-{step}.pt"
    part = target.with_name(f"{target.name}.tmp")
    with part.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(target)
    whole = sorted(folder.glob("step-*.pt"), key=lambda path: int(path.stem[5:]))
    for old in whole[:-KEEP]:
        old.unlink()


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=48, help="images a step and rank")
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--learning-rate", type=float, default=0.02)
    parser.add_argument("--checkpoint-every", type=int, default=20, help="steps")
    return parser.parse_args()


def main() -> None:
    """Find the other ranks, go on from the newest checkpoint, train."""
    options = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="env://", timeout=timedelta(seconds=120))
    training = Training(options.width, options.learning_rate, options.batch)
    folder = Path(os.environ.get("LIGHTLOOM_CHECKPOINT_DIR", "checkpoint"))
    folder.mkdir(exist_ok=True)
    first = int(os.environ.get("LIGHTLOOM_RESTORE_STEP") or 0)
    if first:
        kept = torch.load(Path(os.environ["LIGHTLOOM_RESTORE_DIR"]) / f"step-{first}.pt")
        training.model.load_state_dict(kept["model"])
        training.optimizer.load_state_dict(kept["optimizer"])
        emit("restored", step=first)
    training.run(
        first,
        options,
        lambda done: save(
            folder,
            done,
            {
                "model": training.model.state_dict(),
                "optimizer": training.optimizer.state_dict(),
            },
        ),
    )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
