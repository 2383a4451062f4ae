"""The output layer on NumPy arrays, and on a GPU's."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from . import _arrays, _core, _device, losses
from ._buffers import Buffers

_LAYERS = {"float32": _core.Layer32, "float64": _core.Layer64}
_FORMAT = "1"  # of saved layers


class OutputLayer:
    """D linear outputs o = Wh, trained by exact gradient descent in O(d²) per example.

    outputs, dim     D and d; W is (D, d).
    head             how W is held: "windowed" (the one to use), "factored", "dense", "reference"; "softmax",
                     "hierarchical" and "sampled" are what they are compared with.
    loss             a name or an object of widehead.losses. The three softmaxes have the cross-entropy for theirs, and
                     take only the default.
    dtype            "float32" or "float64".
    device           "cpu"; "cuda" or "cuda:1", the first GPU or the second, in a build with CUDA. A layer on a GPU takes h there,
                     too, and then returns tensors of PyTorch there.
    init             None or "zero"; "normal", with standard deviation init_scale (0 means 1/√D); or W itself, (D, d).
    weight_decay     λ: W shrinks by 1 − ηλ in a step.
    rows_file        a new file for V of the windowed head, which may be larger than memory.
    threads          None means one per core.
    window, samples, classes   of the windowed, sampled and hierarchical head; 0 means chosen.

    Whatever a step raises, the layer is as before. Calls from several threads take turns.
    """

    def __init__(
        self,
        outputs: int,
        dim: int,
        head: str = "windowed",
        loss: str | losses.Loss = "squared",
        dtype: Any = "float32",
        device: str = "cpu",
        init: Any = None,
        weight_decay: float = 0.0,
        rows_file: str | os.PathLike[str] | None = None,
        seed: int = 0,
        threads: int | None = None,
        *,
        init_scale: float = 0.0,
        window: int = 0,
        samples: int = 1024,
        classes: int = 0,
    ) -> None:
        try:
            name = np.dtype(dtype).name
        except TypeError:
            name = str(dtype)
        if name not in _LAYERS:
            raise ValueError(f"dtype {dtype!r} is unknown; there are: {', '.join(_LAYERS)}")
        self._dtype = np.dtype(name)
        W0 = None
        if init is None:
            init = "zero"
        elif not isinstance(init, str):
            W0, init = _arrays.to_table(_device.fetched(init), self._dtype, "init"), "given"
        elif init == "given":
            raise ValueError("init 'given' is unknown; there are: zero, normal, or an array")
        self._options: dict[str, Any] = {
            "outputs": int(outputs),
            "dim": int(dim),
            "head": head,
            "loss": losses.to_dict(losses.make(loss)),
            "init": init,
            "init_scale": float(init_scale),
            "weight_decay": float(weight_decay),
            "seed": int(seed),
            "window": int(window),
            "samples": int(samples),
            "classes": int(classes),
        }
        self._threads = 0 if threads is None else int(threads)
        self._make(W0, "" if rows_file is None else os.fspath(rows_file), str(device))

    def _make(self, W0: np.ndarray | None, rows_file: str, device: str) -> None:
        self._buffers = Buffers()
        self._targets_class = _arrays.targets_class(self._dtype)
        self._rows_file = rows_file
        options = {**self._options, "rows_file": rows_file}
        core = _LAYERS[self._dtype.name](options, W0, self._threads, device)
        self._device: str = core.device
        self._core: Any = core if self._device == "cpu" else _device.Core(core)

    # ── what it is ────────────────────────────────────────────────────────────────────────────────

    @property
    def outputs(self) -> int:
        """D."""
        return self._options["outputs"]

    @property
    def dim(self) -> int:
        """d."""
        return self._options["dim"]

    @property
    def head(self) -> str:
        return self._options["head"]

    @property
    def loss(self) -> losses.Loss:
        return losses.from_dict(self._options["loss"])

    @property
    def dtype(self) -> np.dtype:
        return self._dtype

    @property
    def device(self) -> str:
        return self._device

    @property
    def threads(self) -> int:
        return self._core.threads

    @property
    def steps(self) -> int:
        """Steps taken."""
        return self._core.steps

    def __repr__(self) -> str:
        loss = self.loss if self.head in _core.SPHERICAL_HEADS else "cross-entropy"
        device = "" if self._device == "cpu" else f", device={self._device!r}"
        return (
            f"OutputLayer(outputs={self.outputs}, dim={self.dim}, head={self.head!r}, loss={loss}, "
            f"dtype={self._dtype.name!r}{device})"
        )

    # ── training ──────────────────────────────────────────────────────────────────────────────────

    # Arrays of m rows that are returned are NumPy's, or tensors on the GPU where h is there.

    def step(self, h: Any, targets: Any, lr: float, weights: Any = None) -> tuple[float, Any]:
        """One exact gradient step with rate lr on h (m, d).

        targets   a scipy.sparse CSR matrix (m, D); (indptr, indices, values); or integers (m,), one target each
        weights   of the examples, (m,)

        Returns the loss, summed over the examples, and ∂L/∂h (m, d), both of before the step.
        """
        h, targets, weights = self._batch(h, targets, weights)
        grad_h = self._room(h)
        return self._core.step(h, targets, lr, weights, grad_h), grad_h

    def evaluate(self, h: Any, targets: Any, weights: Any = None) -> tuple[float, Any]:
        """The same loss and ∂L/∂h without the step."""
        h, targets, weights = self._batch(h, targets, weights)
        grad_h = self._room(h)
        return self._core.evaluate(h, targets, weights, grad_h), grad_h

    def rate_for(self, h: Any, targets: Any, lambda1: float, weights: Any = None) -> float:
        """The lr at which λ₁ = 2ηa‖h‖₂² has this value: the rate in a unit that carries over between models."""
        h, targets, weights = self._batch(h, targets, weights)
        return self._core.rate_for(h, targets, lambda1, weights)

    # ── a loss of your own ────────────────────────────────────────────────────────────────────────

    def statistics(self, h: Any, targets: Any) -> tuple[Any, Any, Any]:
        """What a loss of the family may depend on, in float64: q = ‖o‖² (m,), s = Σo (m,), o at the targets, by entry.

        s is None where the layer's loss does not use it. The values of the targets are not looked at.
        """
        h, targets, _ = self._batch(h, targets, None)
        q, s, o, _ = self._observe(h, targets)
        return _device.beside(h, q), _device.beside(h, s), _device.beside(h, o)

    def backward(self, h: Any, targets: Any, a: Any, b: Any, g: Any) -> Any:
        """∂L/∂h from the derivatives of L by q, s and o. b may be None, for 0."""
        h, targets, _ = self._batch(h, targets, None)
        grad_h = self._room(h)
        self._core.backpropagate(h, targets, *_derivatives(*self._host((a, b, g))), grad_h, 0)
        return grad_h

    def update(self, h: Any, targets: Any, a: Any, b: Any, g: Any, lr: float) -> Any:
        """The exact step of W for a loss with these derivatives by q, s and o. Returns ∂L/∂h of before the step."""
        h, targets, _ = self._batch(h, targets, None)
        grad_h = self._room(h)
        self._core.update(h, targets, *_derivatives(*self._host((a, b, g))), lr, grad_h, 0)
        return grad_h

    def _observe(self, h: Any, targets: Any) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, int]:
        q = np.empty(targets.examples)
        s = np.empty(targets.examples) if self._core.uses_sum else None
        o = np.empty(targets.nonzeros)
        return q, s, o, self._core.observe(h, targets, q, s, o)

    # ── questions ─────────────────────────────────────────────────────────────────────────────────

    def weights(self, rows: Any = None, out: Any = None) -> Any:
        """Rows of W (len(rows), d), or all of it (D, d): in a new array of NumPy's, or in `out`, which may be on the layer's GPU."""
        rows = None if rows is None else self._rows(rows)
        shape = (self.outputs if rows is None else len(rows), self.dim)
        W = np.empty(shape, self._dtype) if out is None else self._out(out, shape)
        if rows is None:
            self._core.weights(0, W)
            return W if out is None else out
        starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)  # consecutive rows are asked for at once
        for first, end in zip(starts, [*starts[1:], len(rows)]):
            self._core.weights(int(rows[first]), W[first:end])
        return W if out is None else out

    def gram(self) -> np.ndarray:
        """Q = WᵀW (d, d)."""
        G = np.empty((self.dim, self.dim), self._dtype)
        self._core.gram(G)
        return G

    def sum_of_rows(self) -> np.ndarray:
        """w̄ = Wᵀ1 (d,)."""
        w_bar = np.empty((1, self.dim), self._dtype)
        self._core.sum_of_rows(w_bar)
        return w_bar[0]

    def scores(self, h: Any, rows: Any) -> Any:
        """The outputs named by rows, (m, len(rows))."""
        h = self._hidden(h)
        rows = self._rows(rows)
        shape = (len(h), len(rows))
        out = h.new_empty(shape) if _device.is_tensor(h) else np.empty(shape, self._dtype)
        self._core.scores(h, rows, out)
        return out

    def top_k(self, h: Any, k: int) -> tuple[Any, Any]:
        """The k best outputs of each example, best first, and their scores: two arrays (m, k). O(Dd) an example."""
        h = self._hidden(h)
        k = int(k)
        if not 1 <= k <= self.outputs:
            raise ValueError(f"top_k: k = {k}, but it must be 1 … D = {self.outputs}")
        outputs, scores = np.empty((len(h), k), np.int32), np.empty((len(h), k), self._dtype)
        self._core.top_k(h, outputs, scores)
        return _device.beside(h, outputs), _device.beside(h, scores)

    def log_prob(self, h: Any, targets: Any) -> Any:
        """log p of every target, by entry, in float64: for the losses that are a softmax of sorts."""
        h, targets, _ = self._batch(h, targets, None)
        out = np.empty(targets.nonzeros)
        self._core.log_prob(h, targets, out)
        return _device.beside(h, out)

    def diagnostics(self) -> dict[str, float]:
        """Counters and figures about the numerical state. May be expensive (O(Dd²))."""
        return self._core.diagnostics()

    def counters(self) -> dict[str, float]:
        """What the layer has counted so far. Free of charge."""
        return self._core.counters()

    # ── keeping it ────────────────────────────────────────────────────────────────────────────────

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes everything later steps depend on to a safetensors file: a loaded layer goes on bit for bit."""
        about = {"dtype": self._dtype.name, **self._options}
        self._core.save(os.fspath(path), {"widehead_layer": _FORMAT, "options": json.dumps(about)})

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        rows_file: str | os.PathLike[str] | None = None,
        threads: int | None = None,
        device: str = "cpu",
    ) -> OutputLayer:
        """A saved layer, on any device. Its rows go to a new rows_file, or to memory."""
        path = os.fspath(path)
        metadata = _core.read_metadata(path)
        if metadata.get("widehead_layer") != _FORMAT:
            raise _core.FileError(f"{path}: no layer of format {_FORMAT}, but {metadata.get('widehead_layer')!r}")
        try:
            options = json.loads(metadata["options"])
            rows_path = "" if rows_file is None else os.fspath(rows_file)
            layer = cls._from_options(options, threads, rows_path, str(device))
        except (KeyError, TypeError, ValueError) as error:
            if str(error).startswith("device "):
                raise  # of this call, not of the file
            raise _core.FileError(f"{path}: options of a layer that cannot be: {error}") from error
        layer._core.load(path)
        return layer

    @classmethod
    def _from_options(
        cls, options: dict[str, Any], threads: int | None, rows_file: str = "", device: str = "cpu"
    ) -> OutputLayer:
        layer = cls.__new__(cls)
        layer._options = dict(options)
        layer._dtype = np.dtype(layer._options.pop("dtype"))
        layer._threads = 0 if threads is None else threads
        if layer._options["init"] != "zero":
            layer._options["init"] = "given"  # by the state that will be loaded
        layer._make(None, rows_file, device)
        return layer

    def state(self) -> dict[str, np.ndarray]:
        """Copies of all arrays that later steps depend on."""
        return self._core.state()

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        """Takes the state of a layer with the same options; the layer is as before if it does not fit."""
        self._core.load_state(state)

    def to(self, device: str) -> OutputLayer:
        """Moves the layer to a device, by way of its state on the host. Returns the layer."""
        if str(device) != self._device:
            if self._rows_file:
                raise ValueError("to: a layer with a rows_file stays where it is")
            moved = _rebuild({"dtype": self._dtype.name, **self._options}, self._threads, self.state(), str(device))
            self._core, self._device = moved._core, moved._device
        return self

    def __reduce__(self) -> tuple[Any, ...]:  # pickle, copy.deepcopy
        options = {"dtype": self._dtype.name, **self._options}
        return _rebuild, (options, self._threads, self.state(), self._device)

    # ── arguments ─────────────────────────────────────────────────────────────────────────────────

    def _hidden(self, h: Any) -> Any:
        return self._table(h, "h")

    def _table(self, array: Any, what: str) -> Any:
        if self._device != "cpu" and _device.is_on_gpu(array):
            return _device.to_table(array, self._dtype, self._device, what)
        return _arrays.to_table(array, self._dtype, what, self._device)

    def _host(self, array: Any) -> Any:
        """What the host must know, there: a layer on a GPU also takes it from a GPU."""
        return array if self._device == "cpu" else _device.fetched(array)

    def _room(self, h: Any) -> Any:
        """An array for ∂L/∂h."""
        on_host = self._device == "cpu" or not _device.is_tensor(h)
        return self._buffers.get(h.shape, self._dtype) if on_host else h.new_empty(h.shape)

    def _out(self, out: Any, shape: tuple[int, int]) -> Any:
        """The user's array for a result: as it is, or it is refused."""
        given = out.detach().numpy() if _device.is_tensor(out) and out.is_cpu else out
        if tuple(given.shape) != shape:
            raise ValueError(f"out: shape {tuple(given.shape)}, but {shape} is expected")
        table = self._table(given, "out")
        if (table.data_ptr() != given.data_ptr()) if _device.is_tensor(given) else (table is not given):
            raise ValueError(f"out: {given.dtype}, or another layout, but contiguous rows of {self._dtype} are expected")
        return table

    def _rows(self, rows: Any) -> np.ndarray:
        rows = _arrays.to_integers(self._host(rows), "rows")
        if rows.size and not (0 <= rows.min() and rows.max() < self.outputs):
            bad = int(np.flatnonzero((rows < 0) | (rows >= self.outputs))[0])
            raise ValueError(f"rows[{bad}] = {rows[bad]}, but D = {self.outputs}")
        return rows.astype(np.int32, copy=False)

    def _batch(self, h: Any, targets: Any, weights: Any) -> tuple[Any, Any, np.ndarray | None]:
        if weights is not None:
            weights = _arrays.to_list(self._host(weights), self._dtype, "weights")
        return self._hidden(h), _arrays.to_targets(self._host(targets), self.outputs, self._dtype), weights


def _derivatives(a: Any, b: Any, g: Any) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    double = np.dtype(np.float64)
    b = None if b is None else _arrays.to_list(b, double, "b")
    return _arrays.to_list(a, double, "a"), b, _arrays.to_list(g, double, "g")


def _rebuild(
    options: dict[str, Any], threads: int, state: dict[str, np.ndarray], device: str = "cpu"
) -> OutputLayer:
    layer = OutputLayer._from_options(options, threads, "", device)
    layer.load_state(state)
    return layer
