"""Arrays on a GPU. There PyTorch makes and converts them, as NumPy does on the CPU: arrays of other libraries become tensors
where they lie, by DLPack. It is asked for only when such an array comes along."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from . import _arrays


def _torch(what: str) -> Any:
    try:
        import torch
    except ImportError as error:
        raise ValueError(f"{what}: an array on a GPU is taken by way of PyTorch, which is not installed") from error
    return torch


def number_of(device: str) -> int:
    """0 for "cuda", 1 for "cuda:1"."""
    return int(device.partition(":")[2] or 0)


def is_tensor(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def is_on_gpu(array: Any) -> bool:
    return array.is_cuda if is_tensor(array) else _arrays.device_of(array) in _arrays.CUDA


def to_tensor(array: Any, what: str) -> Any:
    """An array of a GPU as a tensor, where it lies; whoever made it sees to it that PyTorch's current stream waits for it."""
    if is_tensor(array):
        return array.detach()
    torch = _torch(what)
    try:
        return torch.from_dlpack(array)
    except (BufferError, TypeError, RuntimeError) as error:
        raise ValueError(f"{what}: {error}") from error


def to_table(array: Any, dtype: np.dtype, device: str, what: str) -> Any:
    """A 2-D tensor of that type with contiguous rows, on that GPU. What must be converted is converted there."""
    tensor = to_tensor(array, what)
    if tensor.get_device() != number_of(device):
        raise ValueError(f"{what}: the array is on {tensor.device}, but the layer is on {device}")
    if tensor.ndim != 2:
        raise ValueError(f"{what}: shape {tuple(tensor.shape)}, but two dimensions are expected")
    if tensor.is_complex() or tensor.layout is not _torch(what).strided:
        raise ValueError(f"{what}: {tensor.dtype} in layout {tensor.layout}, but numbers in rows are expected")
    return with_contiguous_rows(tensor.to(getattr(_torch(what), dtype.name)))


def with_contiguous_rows(tensor: Any) -> Any:
    rows, columns = tensor.shape
    dense = columns <= 1 or tensor.stride(1) == 1
    return tensor if dense and (rows <= 1 or tensor.stride(0) >= columns) else tensor.contiguous()


def fetched(array: Any) -> Any:
    """What the host must know (targets, weights of examples) on the host: a copy where it is on a GPU, which waits for it."""
    if isinstance(array, tuple):
        return tuple(fetched(each) for each in array)
    return to_tensor(array, "array").cpu() if is_on_gpu(array) else array


def beside(x: Any, array: np.ndarray | None) -> Any:
    """A result of the host's where x is: itself, or a tensor on x's GPU."""
    return array if array is None or not is_tensor(x) else _torch("result").from_numpy(array).to(x.device)


class Core:
    """The layer of the extension on a GPU. Tensors among the arguments of its methods are of that GPU, and go to it as DLPack
    capsules. The layer works on a stream of its own: it waits for what is in PyTorch's current stream when a method is called,
    and what is put there afterwards waits for the layer."""

    def __init__(self, core: Any) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._core, name)
        if not callable(value):
            return value

        def call(*arguments: Any) -> Any:
            tensors = [each for each in arguments if is_tensor(each)]
            if not tensors:
                return value(*arguments)
            torch = _torch(name)
            capsules = (torch.utils.dlpack.to_dlpack(each) if is_tensor(each) else each for each in arguments)
            with self._core.order(torch.cuda.current_stream(tensors[0].device).cuda_stream):
                return value(*capsules)

        self.__dict__[name] = call
        return call
