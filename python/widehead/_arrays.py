"""What users pass as arrays, made into what the extension takes. Nothing is copied that need not be."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core

# DLPack's numbers of devices.
CPU = (1, 3)  # kDLCPU, and memory of the CPU that a GPU can reach
CUDA = (2, 13)  # kDLCUDA, and memory that CUDA moves to and fro


def device_of(array: Any) -> int:
    return int(array.__dlpack_device__()[0]) if hasattr(array, "__dlpack_device__") else CPU[0]


def to_numpy(array: Any, what: str, device: str = "cpu") -> np.ndarray:
    """An array of the CPU as NumPy's, where it lies. `device` is the layer's, for the error."""
    if isinstance(array, np.ndarray):
        return array
    if device_of(array) not in CPU:
        raise ValueError(f"{what}: the array is on another device, but the layer is on {device}")
    if hasattr(array, "detach"):  # a tensor that may be part of a graph
        array = array.detach()
    try:
        return np.from_dlpack(array) if hasattr(array, "__dlpack__") else np.asarray(array)
    except (BufferError, TypeError, RuntimeError) as error:  # bfloat16, sparse tensors and the like
        raise ValueError(f"{what}: {error}") from error


def to_table(array: Any, dtype: np.dtype, what: str, device: str = "cpu") -> np.ndarray:
    """A 2-D array of that type with contiguous rows."""
    table = to_numpy(array, what, device)
    if table.ndim != 2:
        raise ValueError(f"{what}: shape {table.shape}, but two dimensions are expected")
    if table.dtype != dtype:
        if table.dtype.kind not in "fiub":
            raise ValueError(f"{what}: dtype {table.dtype}, but numbers are expected")
        table = table.astype(dtype)
    item = table.itemsize
    if (table.shape[1] > 1 and table.strides[1] != item) or (
        table.shape[0] > 1 and (table.strides[0] < table.shape[1] * item or table.strides[0] % item)
    ):
        table = np.ascontiguousarray(table)
    return table


def to_list(array: Any, dtype: np.dtype, what: str) -> np.ndarray:
    """A contiguous 1-D array of that type."""
    values = to_numpy(array, what)
    if values.ndim != 1:
        raise ValueError(f"{what}: shape {values.shape}, but one dimension is expected")
    if values.dtype.kind not in "fiub":
        raise ValueError(f"{what}: dtype {values.dtype}, but numbers are expected")
    return np.ascontiguousarray(values, dtype)


def to_integers(array: Any, what: str) -> np.ndarray:
    """A contiguous 1-D array of int32 or int64."""
    values = to_numpy(array, what)
    if values.ndim != 1:
        raise ValueError(f"{what}: shape {values.shape}, but one dimension is expected")
    if values.dtype.kind not in "iu" and values.size > 0:
        raise ValueError(f"{what}: dtype {values.dtype}, but integers are expected")
    if values.dtype not in (np.int32, np.int64):
        values = values.astype(np.int64)
    return np.ascontiguousarray(values)


def targets_class(dtype: np.dtype) -> type[_core._Targets]:
    return _core.Targets32 if dtype.itemsize == 4 else _core.Targets64


def to_targets(targets: Any, outputs: int, dtype: np.dtype) -> Any:
    """A minibatch's targets: a CSR matrix (m, D), (indptr, indices, values), or integers (m,), one for each example."""
    make = targets_class(dtype)
    if isinstance(targets, make):
        return targets
    if isinstance(targets, tuple):
        if len(targets) != 3:
            raise ValueError(f"targets: a tuple of {len(targets)}, but (indptr, indices, values) is expected")
        indptr, indices, values = targets
    elif hasattr(targets, "indptr"):  # SciPy's CSR
        if getattr(targets, "format", "csr") != "csr":
            raise ValueError(f"targets: a sparse matrix in {targets.format} format, but csr is expected")
        if targets.shape[1] != outputs:
            raise ValueError(f"targets: targets are for D = {targets.shape[1]}, but the layer has D = {outputs}")
        indptr, indices, values = targets.indptr, targets.indices, targets.data
    elif hasattr(targets, "format") and hasattr(targets, "tocsr"):
        raise ValueError(f"targets: a sparse matrix in {targets.format} format, but csr is expected")
    else:
        indices = to_numpy(targets, "targets")
        if indices.ndim != 1 or indices.dtype.kind not in "iu":
            raise ValueError(
                f"targets: {indices.dtype} of shape {indices.shape}, but expected is a CSR matrix (m, D), "
                "(indptr, indices, values), or integers (m,)"
            )
        return make(outputs, None, to_integers(indices, "targets"), None)
    if values is not None:
        values = to_list(values, dtype, "targets: values")
    return make(outputs, to_integers(indptr, "targets: indptr"), to_integers(indices, "targets: indices"), values)
