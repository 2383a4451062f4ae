"""Tensors on the CPU that are made before they are needed: one that is made after a step takes 25 µs, since the step has driven
PyTorch out of the caches; twenty at once take hardly more."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._buffers import COUNTS

_KEPT = 3
_STOCK = 20


# ── ∂L/∂h ────────────────────────────────────────────────────────────────────────────────────────
# On arrays that are used again when nobody holds them any more (_buffers.py says why). The tensors in stock hold theirs, as
# those do that were handed out: they are told apart by counting.


class Gradient(NamedTuple):
    array: np.ndarray
    tensor: Tensor  # on that memory
    address: tuple[int, int, int]  # of it, as the layer takes it


class _Room:
    def __init__(self, shape: tuple[int, int], dtype: np.dtype) -> None:
        self.shape = shape
        self.array = np.empty(shape, dtype)
        self.address = (self.array.ctypes.data, *shape)
        with torch.inference_mode(False):
            self.stock: list[Tensor] = [torch.from_numpy(self.array)]  # of sizes that come once there is one, too

    def take(self) -> Gradient:
        if not self.stock:
            with torch.inference_mode(False):  # they may be handed out where training goes on
                self.stock += [torch.from_numpy(self.array) for _ in range(_STOCK)]
        return Gradient(self.array, self.stock.pop(), self.address)

    def held(self) -> int:
        """References to the array, besides those of the stock."""
        return sys.getrefcount(self.array) - len(self.stock)


class Gradients:
    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype
        self._rooms: list[_Room] = []

    def get(self, shape: tuple[int, int]) -> Gradient:
        """A tensor with anything in it, of whose memory there is no other."""
        for room in self._rooms:
            if room.shape == shape and room.held() == _NOBODY:
                gradient = room.take()
                if room.held() == _TAKEN:  # else another thread has just done the same: both look further
                    return gradient
        room = _Room(shape, self._dtype)
        if COUNTS:
            if len(self._rooms) == _KEPT:
                del self._rooms[0]
            self._rooms.append(room)
        return room.take()


# What is counted where only the room and its stock hold the array, and where one Gradient was taken from it.
_room = _Room((0, 0), np.dtype(np.float32))
_NOBODY = _room.held()
_gradient = _room.take()
_TAKEN = _room.held()
del _room, _gradient


# ── q, s and o ───────────────────────────────────────────────────────────────────────────────────


class Answer(NamedTuple):
    arrays: tuple[np.ndarray, np.ndarray | None, np.ndarray]  # as the layer fills them
    tensors: tuple[Tensor, Tensor, Tensor]  # on the same memory
    derivatives: tuple[np.ndarray, np.ndarray | None, np.ndarray] | None  # of leaves: the memory of their .grad, 0 so far


class Answers:
    """Room for the statistics of minibatches. None is used again."""

    def __init__(self, leaves: bool = False) -> None:
        self._leaves = leaves
        self._sizes: tuple[int, int, bool] | None = None
        self._stock: list[Answer] = []

    def get(self, examples: int, entries: int, uses_sum: bool) -> Answer:
        if self._sizes != (examples, entries, uses_sum):
            self._sizes = examples, entries, uses_sum
            self._stock = [self._make()]  # sizes may come once only
        if not self._stock:
            self._stock = [self._make() for _ in range(_STOCK)]
        return self._stock.pop()

    def _make(self) -> Answer:
        examples, entries, uses_sum = self._sizes or (0, 0, False)
        arrays = np.empty(examples), np.zeros(examples), np.empty(entries)
        derivatives = [np.zeros(len(each)) for each in arrays]
        with torch.inference_mode(False):
            tensors = [torch.from_numpy(each) for each in arrays]
            if self._leaves:
                for each, by in zip(tensors, derivatives):
                    each.requires_grad = True
                    each.grad = torch.from_numpy(by)
        (q, s, o), (a, b, g) = arrays, derivatives
        given = (a, b if uses_sum else None, g) if self._leaves else None
        return Answer((q, s if uses_sum else None, o), tuple(tensors), given)  # type: ignore[arg-type]
