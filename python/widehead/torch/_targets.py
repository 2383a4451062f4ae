"""The targets of a minibatch, as tensors or as widehead.OutputLayer takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import _arrays, _device
from .._layer import OutputLayer

PADDING = -1  # in targets (m, K): no target


def one_each(targets: Any, layer: OutputLayer) -> Any:
    """The layer's form of targets as they nearly always are, a tensor of int64 (m,) on the host; None for others."""
    if type(targets) is not Tensor:
        return None
    if targets.dtype is not torch.int64 or targets.ndim != 1 or not targets.is_contiguous() or not targets.is_cpu:
        return None
    try:
        address = targets.data_ptr()
    except RuntimeError:  # of a layout without one
        return None
    return layer._targets_class(layer.outputs, address, targets.shape[0])  # which copies them


class Targets:
    """What the layer is given (the pattern: ``core``), and how what it answers by entry comes back in the targets' shape."""

    _kept: Tensor | None = None  # where targets (m, K) are no padding, if that is not everywhere
    _layer: OutputLayer
    _values: Any = None  # by entry; None for 1
    _indices: np.ndarray | None = None  # by entry; None where only the core has them
    indptr: np.ndarray | None = None  # None for one entry an example

    def __init__(self, targets: Any, layer: OutputLayer, device: torch.device) -> None:
        self._layer = layer
        self.device = device  # where tensors are made; the pattern is the host's
        if device.type != "cpu":
            targets = targets.cpu() if isinstance(targets, Tensor) else _device.fetched(targets)
        core = one_each(targets, layer)
        if core is not None:
            self._take_core(core)
            return
        if isinstance(targets, Tensor) and targets.layout is torch.strided:
            self._take_tensor(targets)
        else:
            if isinstance(targets, Tensor):
                targets = _csr(targets)
            _check_width(targets, layer.outputs)
            if isinstance(targets, tuple) and len(targets) == 3:
                self.indptr, indices, self._values = targets
            elif hasattr(targets, "indptr"):
                self.indptr, indices, self._values = targets.indptr, targets.indices, targets.data
            else:
                indices = targets
            self._indices = _arrays.to_integers(indices, "targets: indices")
            if self.indptr is not None:
                self.indptr = _arrays.to_integers(self.indptr, "targets: indptr")
            self._shape = (len(self._indices),)
        pattern = self._indices if self.indptr is None else (self.indptr, self._indices, None)
        self.core = _arrays.to_targets(pattern, layer.outputs, layer.dtype)
        self.examples = self.core.examples

    @classmethod
    def of(cls, core: Any, layer: OutputLayer, device: torch.device) -> Targets:
        """Those of which one_each has made the core."""
        self = cls.__new__(cls)
        self._layer, self.device = layer, device
        self._take_core(core)
        return self

    def _take_core(self, core: Any) -> None:
        self.core = core
        self.examples: int = core.examples
        self._shape: tuple[int, ...] = (core.examples,)

    def _take_tensor(self, targets: Tensor) -> None:
        if targets.ndim not in (1, 2) or targets.dtype.is_floating_point or targets.dtype == torch.bool:
            raise ValueError(
                f"targets: {targets.dtype} of shape {tuple(targets.shape)}, but integers (m,) or (m, K) are expected"
            )
        self._shape = tuple(targets.shape)
        if targets.ndim == 2:
            kept = targets != PADDING
            self.indptr = np.concatenate([[0], kept.sum(1).cumsum(0).numpy()])
            if not bool(kept.all()):
                self._kept = kept.to(self.device)
            targets = targets.reshape(-1) if self._kept is None else targets[kept]
        self._indices = np.array(targets.numpy())  # a copy: the tensor may change before backward()

    def move(self, device: torch.device) -> None:
        self.device = device
        if self._kept is not None:
            self._kept = self._kept.to(device)

    @property
    def indices(self) -> np.ndarray:
        """The targets by entry."""
        if self._indices is None:
            self._indices = np.empty(self.core.nonzeros, np.int32)
            self.core.copy_indices(self._indices)
        return self._indices

    def with_values(self) -> Any:
        """The targets for the layer's own loss, which looks at the values, too."""
        if self._values is None:
            return self.core
        return _arrays.to_targets((self.indptr, self.indices, self._values), self._layer.outputs, self._layer.dtype)

    def shaped(self, by_entry: Tensor) -> Tensor:
        """Values by entry in the shape of the targets, 0 at padding."""
        if len(self._shape) == 1:
            return by_entry
        if self._kept is None:
            return by_entry.reshape(self._shape)
        return by_entry.new_zeros(self._shape).masked_scatter(self._kept, by_entry)

    def sum(self, shaped: Tensor) -> Tensor:
        """The sums over each example's targets (m,)."""
        if shaped.ndim == 2:
            return shaped.sum(1)
        if self.indptr is None:
            return shaped
        return shaped.new_zeros(self.examples).index_add(0, self._rows(), shaped)

    def spread(self, by_example: Tensor) -> Tensor:
        """A value of each example beside each of its targets."""
        if len(self._shape) == 2:
            return by_example[:, None]
        return by_example if self.indptr is None else by_example[self._rows()]

    def values(self) -> Tensor:
        """y in the shape of the targets, float64."""
        if self._values is None:
            y = torch.ones(len(self.indices), dtype=torch.float64, device=self.device)
        else:
            y = torch.as_tensor(self._values).to(self.device, torch.float64)
        return self.shaped(y)

    def merged(self) -> tuple[Tensor, Tensor]:
        """y with what an example says of an output twice added up, and 1 where that stands, 0 elsewhere."""
        y = np.ones(len(self.indices)) if self._values is None else np.asarray(self._values, np.float64)
        first = np.ones_like(y)
        if self.indptr is not None:
            keys = self._example_of_each() * self._layer.outputs + self.indices
            order = np.argsort(keys, kind="stable")
            is_first = np.diff(keys[order], prepend=-1) != 0
            if not is_first.all():
                sums = np.zeros_like(y)
                sums[order[is_first]] = np.add.reduceat(y[order], np.flatnonzero(is_first))
                first[order[~is_first]] = 0
                y = sums
        return tuple(self.shaped(torch.as_tensor(each).to(self.device)) for each in (y, first))  # type: ignore[return-value]

    def _rows(self) -> Tensor:
        return torch.from_numpy(self._example_of_each()).to(self.device)

    def _example_of_each(self) -> np.ndarray:
        """The example of each entry."""
        counts = np.ones(self.examples, np.int64) if self.indptr is None else np.diff(self.indptr)
        return np.repeat(np.arange(self.examples), counts)


def joined(batches: list[Targets], layer: OutputLayer) -> Any:
    """Several minibatches as one, for the layer."""
    ends = np.cumsum([0, *(len(each.indices) for each in batches)])
    starts = [
        np.arange(each.examples) if each.indptr is None else np.asarray(each.indptr[:-1], np.int64) for each in batches
    ]
    indptr = np.concatenate([*(start + end for start, end in zip(starts, ends)), ends[-1:]])
    indices = np.concatenate([np.asarray(each.indices, np.int64) for each in batches])
    return _arrays.to_targets((indptr, indices, None), layer.outputs, layer.dtype)


def _csr(targets: Tensor) -> tuple[np.ndarray, np.ndarray, Tensor]:
    if targets.layout != torch.sparse_csr:
        raise ValueError(f"targets: a sparse tensor of layout {targets.layout}, but torch.sparse_csr is expected")
    return _Csr(targets)  # type: ignore[return-value]


class _Csr:
    """A sparse CSR tensor with the names that SciPy has for its parts."""

    def __init__(self, tensor: Tensor) -> None:
        self.shape = tensor.shape
        self.indptr, self.indices = tensor.crow_indices().numpy(), tensor.col_indices().numpy()
        self.data = tensor.values().detach()


def _check_width(targets: Any, outputs: int) -> None:
    if hasattr(targets, "indptr") and targets.shape[1] != outputs:
        raise ValueError(f"targets: targets are for D = {targets.shape[1]}, but the layer has D = {outputs}")
    if hasattr(targets, "format") and targets.format != "csr":
        raise ValueError(f"targets: a sparse matrix in {targets.format} format, but csr is expected")
