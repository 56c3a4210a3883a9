"""Runs the demo's training job: a small net, trained data-parallel over a TensorFlow ring.

It runs inside the job containers (``python3 -m testbed.trainer``), which contain this file and
what it imports, and nothing else of the project. Every rank is one worker of
``tf.distribute.MultiWorkerMirroredStrategy`` with the ring all-reduce; ``TF_CONFIG`` names the
workers, and its task indices are the ranks. Without ``TF_CONFIG`` it trains alone.

**Model.** By default VGG16 with a quarter of the channels, dense layers of 256 and 32x32x3 input:
1,022,170 parameters, 4,088,680 bytes of float32 gradients. ``--model`` takes another net of
``measure/scaling/nets.py``: ``resnet1`` to ``resnet256``, or ``allcomm``. All parameters are in
one flat vector, so that the gradient of a step is one message (four bytes longer, because it
includes the loss).

**Data.** scikit-learn's handwritten digits (1,797 real images that ship inside the package),
enlarged from 8x8 to 32x32 and repeated over three channels; 1,500 to train, 297 to test. The
image at global sample index *i* depends on ``--seed`` and *i* only. Step *s* of a run with
global batch G trains on the indices [sG, (s+1)G), of which rank *r* of N takes the *r*-th part of
G/N. Hence the loss curve is a function of (seed, samples, global batch, N) and not of placement,
timing or regroups. With the same N it is bit-identical on one machine; across CPU models kernels
may sum in another order, so compare final losses with a relative tolerance of 1e-3.

**Timing.** A step has two sequential parts: the local part (the gradient, and after
the all-reduce the update) and the all-reduce. The gradient is materialised before the all-reduce
starts, so communication is fully exposed and ``comm_s`` is its exposed time; it contains the wait
for slower ranks. Communication and computation never overlap, by construction.

**Start.** Importing TensorFlow and tracing need much CPU time and are not part of training. When
every rank has completed one untrained step, the rank creates ``/run/lightloom/ready`` (if that
directory exists), upon which the agent applies the CPU share that stands in for the GPU, and waits
``--settle`` seconds. The measured run starts with the step after that.

**Checkpoints.** When LIGHTLOOM_CHECKPOINT_DIR is set, every rank writes weights and momentum
there every ``--checkpoint-every`` steps (LIGHTLOOM_CHECKPOINT_EVERY by default; else never) as
``step-N``, see ``testbed/trainer_checkpoint.py``. When LIGHTLOOM_RESTORE_STEP is set, it goes on
from that step in LIGHTLOOM_RESTORE_DIR. Because the data are a function of the step, the final
loss is bit-identical to that of an undisturbed run with as many ranks. With
``--checkpoint-shared DIR`` it writes as most programs do: rank 0 alone, to a store of
``--checkpoint-rate`` bytes a second, while all ranks wait; a later run goes on from the newest
step there.

**Outages.** TensorFlow's coordination service fails a job whose worker is silent for 10 s (an
outage of more than about 4 s was enough). ``HEARTBEAT_TIMEOUT_S`` raises that, so that a job
survives an outage of 15 s (measured); at 20 s gRPC closes the connection and the job fails.

**Output.** One JSON object per line on stdout, with ``event`` one of ``begin`` (before TensorFlow
is imported), ``start``, ``restored``, ``ready``, ``step``, ``checkpoint``, ``end``, ``stopped``,
``error``. ``checkpoint`` has the seconds that it held training up (``blocked_s``), and ``error``
when it could not be written: then training goes on. Times are seconds, ``t`` is wall-clock time.
Exit status 0 done, 1 training failed, 2 usage, 143 after SIGTERM.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from measure.scaling.nets import Net, count, net
from testbed.trainer_checkpoint import Saved, TrainerCheckpoints, from_environment, shared
from testbed.trainer_data import TRAIN_IMAGES, load_images, sample_rows
from testbed.trainer_model import VGG16, initial_parameters, logits

RANK_BATCH, DEFAULT_STEPS = 48, 200
"""Defaults of the command line: some minutes of training on the emulated rack."""
HEARTBEAT_TIMEOUT_S = 60
READY_FILE = Path("/run/lightloom/ready")
LEAVE_S = 1.0


@dataclass(slots=True, frozen=True)
class Options:
    """Options of the command line; ``samples`` and ``global_batch`` are over all ranks."""

    samples: int
    global_batch: int
    seed: int
    learning_rate: float
    settle_s: float
    model: Net = VGG16
    checkpoints: TrainerCheckpoints = field(default_factory=TrainerCheckpoints)

    @property
    def steps(self) -> int:
        """Number of steps of the measured run."""
        return self.samples // self.global_batch


@dataclass(slots=True, frozen=True)
class RingMember:
    """This worker's place in the ring."""

    rank: int
    size: int


@dataclass(slots=True, frozen=True)
class TrainedStep:
    """One trained step: seconds of its two parts, and the loss over the global batch."""

    local_s: float
    comm_s: float
    loss: float


def read_ring(tf_config: str | None) -> RingMember:
    """Parse a TF_CONFIG value. Raises ValueError when it names no worker."""
    if not tf_config:
        return RingMember(0, 1)
    try:
        config = json.loads(tf_config)
        workers, task = config["cluster"]["worker"], config["task"]
        kind, rank = task["type"], int(task["index"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"TF_CONFIG lacks a part: {error}") from error
    if kind != "worker" or not 0 <= rank < len(workers):
        raise ValueError(f"TF_CONFIG names no worker of its cluster: {task}")
    return RingMember(rank, len(workers))


def emit(event: str, **fields: Any) -> None:
    """Print one JSON line."""
    print(json.dumps({"event": event, "t": round(time.time(), 6), **fields}), flush=True)


class StepTrainer:
    """The compiled functions of a step, and the state they work on."""

    def __init__(self, tf: Any, options: Options, ring: RingMember) -> None:
        self._tf = tf
        self._options = options
        self._ring = ring
        distribute = tf.distribute.experimental
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=distribute.CommunicationOptions(
                implementation=distribute.CommunicationImplementation.RING
            )
        )
        images, labels = load_images()
        self._train = images[:TRAIN_IMAGES], labels[:TRAIN_IMAGES]
        self._test = images[TRAIN_IMAGES:], labels[TRAIN_IMAGES:]
        start = initial_parameters(options.seed, options.model)
        self.parameters = int(start.size)
        # Each rank keeps its own copy, which stays equal (equal start, equal summed gradients):
        # a mirrored variable would add a hidden all-reduce to every assignment.
        self._weights = tf.Variable(start)
        self._momentum = tf.Variable(np.zeros_like(start))
        self._gradient = tf.function(self._gradient_of_batch)
        self._reduce = tf.function(self._sum_over_ranks)
        self._update = tf.function(self._apply)
        self._classify = tf.function(self._scores)

    def _scores(self, images: Any) -> Any:
        return logits(self._tf, self._weights, images, self._options.model)

    def _gradient_of_batch(self, images: Any, labels: Any) -> Any:
        """Return this rank's part of the global mean gradient, followed by that of the loss."""
        tf = self._tf
        with tf.GradientTape() as tape:
            scores = self._scores(images)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
            loss = tf.reduce_sum(losses) / self._options.global_batch
        gradient = tape.gradient(loss, self._weights)
        return tf.concat([gradient, tf.reshape(loss, (1,))], axis=0)

    def _sum_over_ranks(self, message: Any) -> Any:
        """Sum a vector over the ring: the only traffic of a step."""
        tf = self._tf

        def body(value: Any) -> Any:
            context = tf.distribute.get_replica_context()
            # The copy binds the value to this replica's device, which all_reduce requires.
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(value))

        return self._strategy.run(body, args=(message,))

    def _apply(self, message: Any) -> None:
        """Momentum SGD with the gradient's norm limited to 1; a zero message changes nothing."""
        gradient = self._tf.clip_by_norm(message[:-1], 1.0)
        self._momentum.assign(0.9 * self._momentum + gradient)
        self._weights.assign_sub(self._options.learning_rate * self._momentum)

    def _batch(self, step: int) -> tuple[Any, Any]:
        share = self._options.global_batch // self._ring.size
        first = step * self._options.global_batch + self._ring.rank * share
        rows = sample_rows(self._options.seed, first, share)
        images, labels = self._train
        return self._tf.constant(images[rows]), self._tf.constant(labels[rows])

    def warm_up(self) -> None:
        """Trace and run all functions once without training; wait for every rank."""
        message = self._reduce(self._gradient(*self._batch(0)))
        self._update(self._tf.zeros_like(message))
        self.barrier()

    def barrier(self) -> None:
        """Wait until every rank has arrived."""
        self._reduce(self._tf.zeros(1)).numpy()

    def step(self, step: int) -> TrainedStep:
        """Train one step."""
        begin = time.perf_counter()
        message = self._gradient(*self._batch(step))
        message.numpy()
        computed = time.perf_counter()
        message = self._reduce(message)
        loss = float(message[-1].numpy())
        reduced = time.perf_counter()
        self._update(message)
        end = time.perf_counter()
        return TrainedStep((computed - begin) + (end - reduced), reduced - computed, loss)

    def state(self, done: int, loss: float) -> Saved:
        """Return the state after ``done`` steps."""
        return Saved(done, self._weights.numpy(), self._momentum.numpy(), loss, self.identity)

    def go_on_from(self, saved: Saved) -> None:
        """Continue from a saved state. Raises ValueError when its size is another."""
        for variable, value in ((self._weights, saved.weights), (self._momentum, saved.momentum)):
            if value.shape != (self.parameters,) or value.dtype != np.float32:
                raise ValueError(f"{value.shape} {value.dtype} are not {self.parameters} floats")
            variable.assign(value)

    @property
    def identity(self) -> str:
        """What a checkpoint must share with this training, so that it may go on from it."""
        options = self._options
        return (
            f"{options.model.name} seed {options.seed} batch {options.global_batch}"
            f" ranks {self._ring.size} rate {options.learning_rate:g}"
        )

    def accuracy(self) -> float:
        """Return the share of correctly classified test images."""
        images, labels = self._test
        guess = np.argmax(self._classify(self._tf.constant(images)).numpy(), axis=1)
        return float(np.mean(guess == labels))


def train(options: Options, ring: RingMember) -> None:
    """Run the complete job and print its lines."""
    tf = _import_tensorflow(ring)
    trainer = StepTrainer(tf, options, ring)
    counts = count(options.model)
    emit(
        "start",
        rank=ring.rank,
        ranks=ring.size,
        model=options.model.name,
        activations=counts.activations,
        flops=counts.flops,
        parameters=trainer.parameters,
        gradient_bytes=4 * trainer.parameters,
        samples=options.samples,
        global_batch=options.global_batch,
        seed=options.seed,
    )
    trainer.warm_up()
    first, loss = _restore(trainer, options.checkpoints, ring)
    emit("ready", rank=ring.rank)
    _announce_ready(options.settle_s)
    trainer.barrier()

    lengths: list[float] = []
    exposed_s = 0.0
    begin = last = time.perf_counter()
    for number in range(first, options.steps):
        step = trainer.step(number)
        now = time.perf_counter()
        length, last = now - last, now
        lengths.append(length)
        exposed_s += step.comm_s
        loss = step.loss
        emit(
            "step",
            step=number,
            step_s=round(length, 6),
            compute_s=round(step.local_s, 6),
            comm_s=round(step.comm_s, 6),
            samples_s=round(options.global_batch / length, 3),
            loss=loss,
        )
        if options.checkpoints.due(number + 1):
            _checkpoint(trainer, options.checkpoints, ring, number + 1, loss)
    completion_s = last - begin
    emit(
        "end",
        rank=ring.rank,
        completion_s=completion_s,
        samples_s=(options.steps - first) * options.global_batch / completion_s if lengths else 0.0,
        final_loss=loss,
        accuracy=trainer.accuracy(),
        step_s_median=statistics.median(lengths) if lengths else 0.0,
        exposed_comm_fraction=exposed_s / completion_s if lengths else 0.0,
    )
    _leave(tf, trainer, ring)


def _restore(
    trainer: StepTrainer, checkpoints: TrainerCheckpoints, ring: RingMember
) -> tuple[int, float]:
    """Return the first step of this run and the last loss before it."""
    begin = time.perf_counter()
    saved = checkpoints.restored(trainer.identity)
    if saved is None:
        return 0, 0.0
    trainer.go_on_from(saved)
    seconds = round(time.perf_counter() - begin, 6)
    emit("restored", rank=ring.rank, step=saved.step, seconds=seconds)
    return saved.step, saved.loss


def _checkpoint(
    trainer: StepTrainer, checkpoints: TrainerCheckpoints, ring: RingMember, done: int, loss: float
) -> None:
    """Write a checkpoint; a failure is reported and does not end the training."""
    begin = time.perf_counter()
    failed = {}
    if checkpoints.folder is not None and not (checkpoints.alone and ring.rank):
        try:
            checkpoints.folder.write(trainer.state(done, loss))
        except OSError as error:
            failed = {"error": str(error)}
    if checkpoints.alone:
        trainer.barrier()
    seconds = round(time.perf_counter() - begin, 6)
    emit("checkpoint", rank=ring.rank, step=done, blocked_s=seconds, **failed)


def _import_tensorflow(ring: RingMember) -> Any:
    """Import TensorFlow quietly, with its threads and its heartbeat timeout configured."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    import tensorflow as tf  # noqa: PLC0415  (reads the environment set above)

    tf.get_logger().setLevel("ERROR")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.experimental.enable_op_determinism()
    if ring.size > 1:
        _raise_heartbeat_timeout(ring)
    return tf


def _raise_heartbeat_timeout(ring: RingMember) -> None:
    """Configure the coordination service before the strategy does, with a longer timeout.

    The strategy does not change a service that is already configured
    (``CollectiveAllReduceExtended._initialize_multi_worker``) and has no argument for it.
    """
    from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2  # noqa: PLC0415
    from tensorflow.python.eager import context  # noqa: PLC0415

    workers = coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=ring.size)
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        heartbeat_timeout_in_ms=HEARTBEAT_TIMEOUT_S * 1000,
        coordinated_jobs=[workers],
    )


def _end_on_sigterm() -> None:
    """End the process on SIGTERM, also while its main thread waits inside a collective.

    A Python handler runs only in the main thread, once that is back in Python. The interpreter
    writes a byte as the signal arrives, which a thread reads immediately.
    """
    reader, writer = os.pipe2(os.O_NONBLOCK)
    os.set_blocking(reader, True)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGTERM, lambda number, frame: None)

    def wait() -> None:
        while signal.SIGTERM not in os.read(reader, 16):
            pass
        emit("stopped")
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=wait, name="sigterm", daemon=True).start()


def _announce_ready(settle_s: float) -> None:
    """Tell the agent that start-up is complete and give it time to apply the CPU share."""
    if READY_FILE.parent.is_dir():
        READY_FILE.touch()
        time.sleep(settle_s)


def _leave(tf: Any, trainer: StepTrainer, ring: RingMember) -> None:
    """Wait for the other ranks: rank 0 serves the coordination of all ranks and exits last.

    A rank passes the barrier when its last bytes are sent, not when they have arrived, so each
    rank waits a little. An error here does not affect the training result.
    """
    if ring.size == 1:
        return
    with contextlib.suppress(tf.errors.OpError):
        trainer.barrier()
        time.sleep(LEAVE_S if ring.rank else 2 * LEAVE_S)


def parse_arguments(argv: Sequence[str], ring: RingMember) -> Options:
    """Return the options; exits with status 2 when they are inconsistent."""
    parser = argparse.ArgumentParser(description="Train a small net over a TensorFlow ring.")
    parser.add_argument(
        "--global-batch",
        type=int,
        default=RANK_BATCH * ring.size,
        help=f"images per step over all ranks; default {RANK_BATCH} per rank",
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=None,
        help=f"images to train over all ranks; default {DEFAULT_STEPS} steps",
    )
    parser.add_argument("--model", type=_net, default=VGG16, help="vgg16, resnet1, … or allcomm")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--checkpoint-every", type=int, default=None, help="steps; 0 for never")
    parser.add_argument("--checkpoint-shared", type=Path, default=None, help="rank 0 writes here")
    parser.add_argument("--checkpoint-rate", type=float, default=20e6, help="bytes/s of that store")
    parser.add_argument("--settle", type=float, default=3.0, help="seconds to wait after ready")
    given = parser.parse_args(argv)
    if given.global_batch < 1 or given.global_batch % ring.size:
        parser.error(f"--global-batch must be a positive multiple of the {ring.size} ranks")
    samples = DEFAULT_STEPS * given.global_batch if given.samples is None else given.samples
    if samples < 1 or samples % given.global_batch:
        parser.error("--samples must be a positive multiple of --global-batch")
    try:
        checkpoints = _checkpoints(given, ring)
    except (OSError, ValueError) as error:
        parser.error(f"checkpoints: {error}")
    return Options(
        samples,
        given.global_batch,
        given.seed,
        given.learning_rate,
        given.settle,
        given.model,
        checkpoints,
    )


def _checkpoints(given: argparse.Namespace, ring: RingMember) -> TrainerCheckpoints:
    if given.checkpoint_shared is None:
        return from_environment(dict(os.environ), given.checkpoint_every)
    if not given.checkpoint_every or not 0 < given.checkpoint_rate < float("inf"):
        raise ValueError("--checkpoint-shared needs --checkpoint-every and a rate above 0")
    return shared(
        given.checkpoint_shared,
        given.checkpoint_every,
        given.checkpoint_rate,
        ring.rank,
        ring.size,
    )


def _net(name: str) -> Net:
    try:
        return net(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def main(argv: Sequence[str] | None = None) -> int:
    """Train according to the command line and TF_CONFIG; return the exit status."""
    emit("begin")
    _end_on_sigterm()
    try:
        ring = read_ring(os.environ.get("TF_CONFIG"))
    except ValueError as error:
        print(f"trainer: {error}", file=sys.stderr)
        return 2
    options = parse_arguments(sys.argv[1:] if argv is None else argv, ring)
    try:
        train(options, ring)
    except Exception as error:
        # TensorFlow's messages quote the graph and the Python stack, indented: omit those.
        lines = [line for line in str(error).splitlines() if line and not line[0].isspace()]
        emit("error", rank=ring.rank, kind=type(error).__name__, error=" ".join(lines))
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    # TensorFlow's server threads have no stop; a normal interpreter exit may hang on them.
    os._exit(status)
