"""Python runs this first in a job's processes: it waits for PyTorch, then runs the image's own.

Any other program pays one access to a dictionary for each module that it imports.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec

FOLDER = __file__.rpartition("/")[0]
WATCHED = {
    "torch.distributed.distributed_c10d": "distributed",
    "torch.utils.data.dataloader": "loaders",
    "torch.optim.optimizer": "optimizers",
}
"""Function of ``lightloom_recorder`` for each module; called once, when the module is loaded."""


class _Watch(MetaPathFinder):
    def find_spec(self, name, path, target=None):  # type: ignore[no-untyped-def]
        if name not in WATCHED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, WATCHED.pop(name))
        return spec


class _Loader(Loader):
    """The loader of a watched module, and the recorder after it."""

    def __init__(self, loader: Loader, function: str) -> None:
        self._loader = loader
        self._function = function

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec):  # type: ignore[no-untyped-def]
        return self._loader.create_module(spec)

    def exec_module(self, module) -> None:  # type: ignore[no-untyped-def]
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        try:
            recorder = import_module("lightloom_recorder")  # only where PyTorch is
            getattr(recorder, self._function)(module)
        except Exception:  # noqa: S110 - the program is not to notice
            pass


def _chain() -> None:
    """Run the ``sitecustomize`` that Python would have run without this one."""
    others = [entry for entry in sys.path if entry.rstrip("/") != FOLDER]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, _Watch())
    _chain()
