"""What the recorder costs a PyTorch program: the same training with and without it, interleaved.

    python -m benchmarks.recorder_overhead [--quick]

Needs root and the image ll-torch (it is built where it is missing), and a quiet machine; takes
about five minutes. A block is two trainings of two ranks each (DistributedDataParallel on gloo, two
all-reduces a step) that live at the same time, one recorded, one bare. They take turns of some
steps, A B B A, while the other one waits; so both see the same machine. Prints one JSON object:

* ``ratio``: median over blocks of the block's median of recorded / bare, of neighbouring turns;
* ``ratio_interval``: its 95 % interval (order statistics; of six blocks, the extremes);
* ``turns_interval``: that of the median of all turns of all blocks, without what differs by block;
* ``noise_interval``: the same for bare / the bare turn before it, which has no recorder at all.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WIDTH = 512
RANKS = 2
PORT = 29700
WARM_UP = 20
"""Steps before the first turn."""
LEAST_TURNS = 4
MOST_S = 420.0
"""Of all blocks together: on a slow machine they have fewer turns."""
LIMIT_S = 900
"""For the engine's answer."""
RECORDER = "/lightloom/recorder"
RECORD = "/lightloom/record"


def rank(number: int, port: int) -> None:
    """Train two layers, as many steps as each line of the input says; print their median (s)."""
    import torch  # noqa: PLC0415 - only where the benchmark's ranks run
    import torch.distributed as dist  # noqa: PLC0415

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), USE_LIBUV="0")
    os.environ.update(RANK=str(number), WORLD_SIZE=str(RANKS), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH))
    model = torch.nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            begin = time.perf_counter()
            optimizer.zero_grad()
            model(torch.ones(64, WIDTH)).square().sum().backward()
            optimizer.step()
            times.append(time.perf_counter() - begin)
        sys.stdout.write(f"{statistics.median(times)}\n")
        sys.stdout.flush()


class Training:
    """The ranks of one training."""

    def __init__(self, port: int, *, recorded: bool) -> None:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        if recorded:
            environment["PYTHONPATH"] = f"{RECORDER}/python"
        self.ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", str(number), "--port", str(port)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(RANKS)
        ]

    def turn(self, steps: int) -> float:
        """Train; return the median step of the slower rank."""
        for process in self.ranks:
            assert process.stdin is not None
            process.stdin.write(f"{steps}\n")
            process.stdin.flush()
        return max(float(p.stdout.readline()) for p in self.ranks if p.stdout is not None)

    def end(self) -> None:
        """End the ranks."""
        for process in self.ranks:
            process.kill()
        for process in self.ranks:
            process.communicate(timeout=60)


def block(number: int, turns: int, steps: int, until: float) -> list[tuple[float, float]]:
    """Return the median steps of neighbouring turns, bare and recorded; fewer after ``until``."""
    both = {
        recorded: Training(PORT + 2 * number + recorded, recorded=recorded)
        for recorded in (False, True)
    }
    try:
        for training in both.values():
            training.turn(WARM_UP)
        pairs: list[tuple[float, float]] = []
        for turn in range(turns):
            if len(pairs) >= LEAST_TURNS and time.monotonic() > until:
                break
            order = (True, False) if turn % 2 else (False, True)
            found = {recorded: both[recorded].turn(steps) for recorded in order}
            pairs.append((found[False], found[True]))
        written = {int(path.stem.partition("-")[2]) for path in Path(RECORD).glob("torch-*.rec")}
        if written & {p.pid for p in both[False].ranks} or not written >= {
            p.pid for p in both[True].ranks
        }:
            raise SystemExit(f"the wrong processes were recorded: {sorted(written)}")
        return pairs
    finally:
        for training in both.values():
            training.end()
        for path in Path(RECORD).glob("*.rec"):
            path.unlink()


def inside(options: argparse.Namespace) -> None:
    """Run the blocks, in the container; print their pairs."""
    begin = time.monotonic()
    pairs = [
        block(k, options.turns, options.steps, begin + (k + 1) * MOST_S / options.blocks)
        for k in range(options.blocks)
    ]
    sys.stdout.write(json.dumps(pairs) + "\n")


def outside(options: argparse.Namespace) -> None:
    """Run the container; print what its pairs say."""
    import docker  # noqa: PLC0415 - the ranks have the standard library and PyTorch only

    from measure.statistics import median, summarise  # noqa: PLC0415
    from testbed.engine import LABEL, DockerEngine  # noqa: PLC0415
    from testbed.image.torch import ensure_torch_image  # noqa: PLC0415

    root = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory(prefix="ll-recorder-") as scratch:
        engine = DockerEngine(Path(scratch))
        info = engine.start()
        try:
            image = ensure_torch_image(info)
            arguments = ("--inside", *(f"--{k}={getattr(options, k)}" for k in SETTINGS))
            client = docker.DockerClient(info.host_url, timeout=LIMIT_S)
            output = client.containers.run(
                image,
                ["python3", "/bench/recorder_overhead.py", *arguments],
                name=f"ll-recorder-overhead-{os.getpid()}",
                labels={LABEL: "benchmark"},
                network_mode="none",
                tmpfs={RECORD: "size=8m,mode=1777"},
                volumes={
                    str(root / "benchmarks"): {"bind": "/bench", "mode": "ro"},
                    str(root / "recorder"): {"bind": RECORDER, "mode": "ro"},
                },
                remove=True,
            )
            client.close()
        finally:
            engine.stop()
    blocks = json.loads(output.splitlines()[-1])
    of_blocks = summarise([median([rec / bare for bare, rec in pairs]) for pairs in blocks])
    of_turns = summarise([rec / bare for pairs in blocks for bare, rec in pairs])
    noise = summarise(
        [after[0] / before[0] for pairs in blocks for before, after in itertools.pairwise(pairs)]
    )
    assert of_blocks is not None
    assert of_turns is not None
    assert noise is not None
    document = {
        "bare_s": median([bare for pairs in blocks for bare, _ in pairs]),
        "recorded_s": median([rec for pairs in blocks for _, rec in pairs]),
        "ratio": of_blocks.median,
        "ratio_interval": [of_blocks.low, of_blocks.high],
        "turns_ratio": of_turns.median,
        "turns_interval": [of_turns.low, of_turns.high],
        "noise_interval": [noise.low, noise.high],
        "turns_done": sum(map(len, blocks)),
        "load_1m": os.getloadavg()[0],
        **{name: getattr(options, name) for name in SETTINGS},
    }
    sys.stdout.write(json.dumps(document) + "\n")


SETTINGS = ("blocks", "turns", "steps")


def main() -> None:
    """Run all of it, the blocks in the container, or one rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=6, help="at least 5")
    parser.add_argument("--turns", type=int, default=20, help="of each training in a block")
    parser.add_argument("--steps", type=int, default=15, help="of a turn")
    parser.add_argument("--quick", action="store_true", help="to see that it works")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.blocks, options.turns, options.steps = 5, 4, 3
    if options.rank is not None:
        rank(options.rank, options.port)
    elif options.inside:
        inside(options)
    elif options.blocks < 5:
        parser.error("an interval needs 5 blocks")
    else:
        outside(options)


if __name__ == "__main__":
    main()
