"""The recorder in real processes of Python, with a stand-in for PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recorder.layout import Contents, read

PYTHON = Path(__file__).parents[3] / "recorder" / "python"

# What the recorder touches of torch 1.13: methods of a process group, kernels, opaque results.
TORCH = """
import sys, types
__version__ = "1.13.0"
class Library:
    kernels = {}
    def __init__(self, *_): pass
    def impl(self, name, kernel, key): self.kernels[name, key] = kernel
library = types.SimpleNamespace(Library=Library)
class Tensor:
    dtype, device = "torch.float32", types.SimpleNamespace(type="cpu")
    def __init__(self, n): self.n = n
    def cuda(self):
        self.device = types.SimpleNamespace(type="cuda")
        return self
    def numel(self): return self.n
    def element_size(self): return 4
class _Operator:
    def default(self, *arguments): return list(arguments[0]), "work"
ops = types.SimpleNamespace(c10d=types.SimpleNamespace(allreduce_=_Operator()))
class Work: pass
_C = types.SimpleNamespace(
    _distributed_c10d=types.SimpleNamespace(Work=Work),
    _AutoDispatchBelowAutograd=object,
    _dispatch_has_kernel_for_dispatch_key=lambda *_: False,
)
class _Engine:
    callbacks = None
    def queue_callback(self, callback):
        if self.callbacks is None: raise RuntimeError("only in a backward pass")
        self.callbacks.append(callback)
engine = _Engine()
cuda = types.SimpleNamespace(nccl=types.SimpleNamespace(version=lambda: (2, 28, 9)))
class Variable: _execution_engine = engine
autograd = types.SimpleNamespace(Variable=Variable)
"""
DISTRIBUTED = """
class Future:
    def add_done_callback(self, callback): callback(self)
class Work:
    def get_future(self): return Future()
class ProcessGroup:
    def allreduce(self, tensors, opts=None):
        if opts == "fail": raise ValueError("of the program")
        return Work()
    def barrier(self): return Work()
    def size(self): return 2
_pg_names, _pg_group_ranks = {}, {}
def init_process_group(backend):
    "The program's."
    global group
    group = ProcessGroup(); _pg_names[group] = "0"; _pg_group_ranks[group] = {0: 0, 1: 1}
    return backend
def _get_default_group(): return group
def get_rank(): return 0
"""
OPTIMIZER = """
class Optimizer:
    def __init__(self): self._hook_for_profile()
    def _hook_for_profile(self): pass
"""
LOADER = """
class _BaseDataLoaderIter:
    def __init__(self, n): self.n = n
    def __iter__(self): return self
    def __next__(self):
        if not self.n: raise StopIteration
        self.n -= 1
        return self.n
"""
PROGRAM = """
import torch, torch.distributed.distributed_c10d as d, torch.optim.optimizer as o
from torch.utils.data.dataloader import _BaseDataLoaderIter
assert d.init_process_group("gloo") == "gloo" and d.init_process_group.__doc__
class SGD(o.Optimizer):
    def step(self): return 5
sgd = SGD()
for batch in _BaseDataLoaderIter(3):
    d.group.allreduce([torch.Tensor(256)])
    torch.engine.callbacks = []
    kernel = torch.Library.kernels["allreduce_", "AutogradCPU"]
    assert kernel([torch.Tensor(64)], object(), object(), 1)[1] == "work"
    for callback in torch.engine.callbacks: callback()
    torch.engine.callbacks = None
    assert sgd.step() == 5
kernel([torch.Tensor(64)], object(), object(), 1)
d.group.barrier()
try:
    d.group.allreduce([torch.Tensor(256)], "fail")
except ValueError as error:
    print(error)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    files = {
        "torch/__init__.py": TORCH,
        "torch/distributed/__init__.py": "",
        "torch/distributed/distributed_c10d.py": DISTRIBUTED,
        "torch/optim/__init__.py": "",
        "torch/optim/optimizer.py": OPTIMIZER,
        "torch/utils/__init__.py": "",
        "torch/utils/data/__init__.py": "",
        "torch/utils/data/dataloader.py": LOADER,
    }
    for name, text in files.items():
        path = tmp_path / "image" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "record").mkdir()
    return tmp_path


def run(
    place: Path, program: str, *options: str, record: str = "record", ours: Path = PYTHON
) -> str:
    done = subprocess.run(
        [sys.executable, *options, "-c", program],
        env={
            **os.environ,
            "PYTHONPATH": f"{ours}:{place / 'image'}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "LIGHTLOOM_RECORD_DIR": str(place / record),
        },
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    return done.stdout


def recorded(place: Path) -> Contents:
    (path,) = (place / "record").iterdir()
    return read(path.read_bytes())


def test_an_unchanged_program_is_recorded(place: Path) -> None:
    assert run(place, PROGRAM) == "of the program\n"
    contents = recorded(place)
    rows = {(o.op, o.bytes): o for o in contents.operations}
    assert {key: o.calls for key, o in rows.items()} == {
        ("input_wait", 0): 3,
        ("all_reduce", 1024): 3,
        ("all_reduce", 256): 4,
        ("step", 0): 2,
        ("barrier", 0): 1,
    }
    assert rows["all_reduce", 1024].timing == "host"
    assert rows["all_reduce", 256].timing == "issue"
    assert sum(rows["all_reduce", 256].histogram) == 3  # one was out of a backward pass
    assert [call.sequence for call in contents.calls] == list(range(8))
    assert contents.note == "torch 1.13.0"


@pytest.mark.parametrize("loaded", [True, False])
def test_calls_that_the_plug_in_records_are_let_pass(place: Path, loaded: bool) -> None:
    program = f"""
import os, torch, torch.distributed.distributed_c10d as d
os.environ["NCCL_PROFILER_PLUGIN"] = "/lightloom/recorder/lib/x86_64/libll.so"
d.init_process_group("nccl")
d.group.allreduce([torch.Tensor(256).cuda()])  # NCCL makes its communicator in the first call
if {loaded}:
    open(f"{{os.environ['LIGHTLOOM_RECORD_DIR']}}/nccl-{{os.getpid()}}.rec", "w").close()
for _ in range(9):
    d.group.allreduce([torch.Tensor(256).cuda()])
    d.group.allreduce([torch.Tensor(64)])
print(d.group.barrier() is None)
"""
    assert run(place, program) == "False\n"
    (path,) = (place / "record").glob("torch-*.rec")
    rows = {(o.op, o.bytes): o.calls for o in read(path.read_bytes()).operations}
    assert rows == {
        ("all_reduce", 1024): 1 if loaded else 10,
        ("all_reduce", 256): 9,
        ("barrier", 0): 1,
    }


@pytest.mark.parametrize("record", ["absent", "record/file"])
def test_without_a_place_for_the_file_the_program_runs(place: Path, record: str) -> None:
    (place / "record" / "file").touch()
    assert run(place, PROGRAM, record=record) == "of the program\n"


def test_an_error_of_the_recorder_does_not_reach_the_program(place: Path) -> None:
    broken = PROGRAM.replace("for batch", "torch.Tensor.numel = None\nfor batch")
    assert run(place, broken) == "of the program\n"
    assert recorded(place).lost > 0


@pytest.mark.parametrize("text", ["raise MemoryError", "not Python", "", "import lost.module"])
def test_a_recorder_that_cannot_be_loaded_does_not_reach_the_program(
    place: Path, text: str
) -> None:
    ours = place / "ours"
    ours.mkdir()
    (ours / "lightloom_recorder.py").write_text(text)
    (ours / "sitecustomize.py").write_bytes((PYTHON / "sitecustomize.py").read_bytes())
    program = (
        "import torch, torch.distributed.distributed_c10d as d\n"
        "d.init_process_group('gloo')\n"
        "d.group.allreduce([torch.Tensor(4)])\n"
        "print('runs')"
    )
    assert run(place, program, ours=ours) == "runs\n"
    assert list((place / "record").iterdir()) == []


def test_an_error_of_the_images_own_sitecustomize_is_pythons_to_tell(place: Path) -> None:
    (place / "image" / "sitecustomize.py").write_text("raise RuntimeError('of the image')")
    done = subprocess.run(
        [sys.executable, "-c", "print('runs')"],
        env={**os.environ, "PYTHONPATH": f"{PYTHON}:{place / 'image'}"},
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "runs\n"
    assert "of the image" in done.stderr


def test_the_own_sitecustomize_of_the_image_runs(place: Path) -> None:
    own = place / "image" / "sitecustomize.py"
    own.write_text("import sys\nsys.of_the_image = __file__\n")
    shown = run(place, "import sys, sitecustomize as s; print(sys.of_the_image, s.__file__)")
    assert shown == f"{own} {own}\n"


def test_isolated_python_and_other_programs_are_not_touched(place: Path) -> None:
    assert run(place, "import sys; print('lightloom_recorder' in sys.modules)") == "False\n"
    assert "sitecustomize" in run(place, "import sys; print(sys.meta_path)")
    assert "sitecustomize" not in run(place, "import sys; print(sys.meta_path)", "-I")
    assert list((place / "record").iterdir()) == []
