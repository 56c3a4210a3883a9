"""PyTorch's distributed checkpoints, written beside the training: async_save, rule ``dcp``.

    lightloom submit -f examples/torch_dcp.yaml

The ranks write one checkpoint together, each its part (``__RANK_0.distcp``) to a folder of its own
server; the coordinator's ``.metadata`` makes it whole, and lightloom waits for that. After a
restart a rank may need any rank's part, so LIGHTLOOM_RESTORE_DIR shows them all in one folder.
Needs PyTorch 2.3 or newer. The training is that of ``torch_checkpoint.py``.
"""

from __future__ import annotations

import copy
import os
import shutil
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch_checkpoint import KEEP, Training, arguments
from torch_ddp import emit


class Saver:
    """Writes one checkpoint at a time beside the training."""

    def __init__(self, training: Training, folder: Path) -> None:
        self._training = training
        self._folder = folder
        # The threads that save talk beside the training: in one group their messages would mix.
        self._group = dist.new_group(backend="gloo")
        self._running: Future[object] | None = None

    def state(self) -> dict[str, object]:
        """Return what a checkpoint has: model, optimizer, and something of this rank alone."""
        model, optimizer = get_state_dict(self._training.model, self._training.optimizer)
        own = {f"random-{dist.get_rank()}": torch.get_rng_state()}
        return {"model": model, "optimizer": optimizer, **own}

    def save(self, step: int) -> None:
        """Begin to write; the last one must be written by then."""
        self.wait()
        steps = sorted(int(path.name[5:]) for path in self._folder.glob("step-*"))
        for old in steps[: 1 - KEEP]:
            shutil.rmtree(self._folder / f"step-{old}")
        self._running = dcp.async_save(
            # What is on a GPU is copied by async_save, what is in memory is not (PyTorch 2.6).
            copy.deepcopy(self.state()),
            checkpoint_id=str(self._folder / f"step-{step}"),
            process_group=self._group,
        )

    def wait(self) -> None:
        """Wait until everything is written."""
        if self._running is not None:
            self._running.result()
            self._running = None

    def load(self, folder: Path) -> None:
        """Go on from the checkpoint in ``folder``."""
        state = self.state()
        dcp.load(state, checkpoint_id=str(folder))
        set_state_dict(
            self._training.model,
            self._training.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        torch.set_rng_state(state[f"random-{dist.get_rank()}"])


def main() -> None:
    """Find the other ranks, go on from the newest checkpoint, train."""
    options = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo", init_method="env://", timeout=timedelta(seconds=120))
    training = Training(options.width, options.learning_rate, options.batch)
    folder = Path(os.environ.get("LIGHTLOOM_CHECKPOINT_DIR", "checkpoint"))
    folder.mkdir(exist_ok=True)
    saver = Saver(training, folder)
    first = int(os.environ.get("LIGHTLOOM_RESTORE_STEP") or 0)
    if first:
        saver.load(Path(os.environ["LIGHTLOOM_RESTORE_DIR"]) / f"step-{first}")
        emit("restored", step=first)
    training.run(first, options, saver.save)
    saver.wait()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
