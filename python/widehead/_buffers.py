"""Arrays for results, used again when nobody holds them any more.

A fresh array of a few hundred kilobytes comes as pages that the system has yet to hand out, one by one, while they are
written: at d = 300, m = 128 that is several per cent of a step. A training loop drops the last gradient before it asks for
the one after next, so a few arrays take turns.
"""

from __future__ import annotations

import sys

import numpy as np

_KEPT = 3


def _references(arrays: list[np.ndarray], k: int) -> int:
    return sys.getrefcount(arrays[k])


_NOBODY = _references([np.empty(0)], 0)  # what is counted where only the list holds the array
COUNTS = getattr(sys, "_is_gil_enabled", lambda: True)()  # without a GIL, counts say nothing


class Buffers:
    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []

    def get(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array with anything in it, to which there is no other reference (a view or a tensor on it is one)."""
        arrays = self._arrays
        for k in range(len(arrays)):
            if _references(arrays, k) == _NOBODY and arrays[k].shape == shape and arrays[k].dtype == dtype:
                return arrays[k]
        array = np.empty(shape, dtype)
        if COUNTS:
            if len(arrays) == _KEPT:
                del arrays[0]
            arrays.append(array)
        return array
