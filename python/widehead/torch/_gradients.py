"""Tensors for ∂L/∂h on the CPU, on arrays that are used again when nobody holds them any more (_buffers.py says why).

A tensor that is made after a step takes 25 µs, twenty at once hardly more: so each array has some in stock. They hold it, as
those do that were handed out, which are told apart by counting.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._buffers import COUNTS

_KEPT = 3
_STOCK = 20


class Gradient(NamedTuple):
    array: np.ndarray
    tensor: Tensor  # on that memory
    address: tuple[int, int, int]  # of it, as the layer takes it


class _Room:
    def __init__(self, shape: tuple[int, int], dtype: np.dtype) -> None:
        self.shape = shape
        self.array = np.empty(shape, dtype)
        self.address = (self.array.ctypes.data, *shape)
        self.stock: list[Tensor] = [torch.from_numpy(self.array)]  # of sizes that come once there is one, too

    def take(self) -> Gradient:
        if not self.stock:
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
                return room.take()
        room = _Room(shape, self._dtype)
        if COUNTS:
            if len(self._rooms) == _KEPT:
                del self._rooms[0]
            self._rooms.append(room)
        return room.take()


_NOBODY = _Room((0, 0), np.dtype(np.float32)).held()  # what is counted where only the room and its stock hold the array
