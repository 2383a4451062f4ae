"""Vectors of words, items and labels, and the two formats of word2vec, which gensim and others read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _arrays, _core


def model_vectors(
    model: str | os.PathLike[str], kind: str = "output", threads: int | None = None
) -> tuple[list[str], np.ndarray]:
    """Names and vectors (D, dim), float32, of all outputs of a trained model: its rows of W, or "input" embeddings."""
    return _core.model_vectors(os.fspath(model), kind, 0 if threads is None else threads)


def save_word_vectors(path: str | os.PathLike[str], words: Sequence[str], vectors: Any, binary: bool = False) -> None:
    """Writes word2vec's format, which gensim opens: KeyedVectors.load_word2vec_format(path, binary=binary)."""
    table = _arrays.to_table(vectors, np.dtype(np.float32), "vectors")
    _core.save_word_vectors(os.fspath(path), list(words), table, binary)


def load_word_vectors(
    path: str | os.PathLike[str], binary: bool = False, limit: int | None = None
) -> tuple[list[str], np.ndarray]:
    """Words and vectors (n, dim), float32, of a file in word2vec's format; the first `limit` of them."""
    return _core.load_word_vectors(os.fspath(path), binary, limit)
