"""WideHead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import _core, _device, losses
from .._layer import OutputLayer
from . import _losses
from ._graph import Journal, LossRecord, Record, Statistics, as_array, as_tensor, has_moved
from ._own import learn_own
from ._ready import Judged, LayerLoss, pending_loss, send_down
from ._targets import Targets, joined, one_each

_DTYPES = {torch.float32: "float32", torch.float64: "float64"}


def _device_of(layer: OutputLayer) -> torch.device:
    return torch.device("cpu") if layer.device == "cpu" else torch.device("cuda", _device.number_of(layer.device))


class WideHead(nn.Module):
    """D linear outputs o = Wh on top of a PyTorch model, trained exactly in O(d²) per example.

    dim, outputs   d and D.
    loss           of ``forward``: a name or an object of widehead.losses, or a function (head, h, targets) → (m,). A loss
                   of your own needs none of this: it is written on ``statistics``.
    reduction      of ``forward``: "mean" or "sum" over the examples, or "none".
    uses_sum       False where no loss depends on s = Σo: a step is a little cheaper, and s is 0.

    The others are those of widehead.OutputLayer, which is ``head.layer``. Targets are integers (m,), one for each example;
    (m, K), with −1 for no target; a sparse CSR tensor (m, D); or what OutputLayer takes. h may be of another floating type,
    as it is under autocast: it is converted to dtype.

    ``to("cuda")`` moves the head as any module, in a build with CUDA. Then h and its gradient stay on the GPU; targets are the
    host's, and are fetched where they are not.
    """

    def __init__(
        self,
        dim: int,
        outputs: int,
        loss: str | losses.Loss | Callable[..., Tensor] = "squared",
        *,
        reduction: str = "mean",
        head: str = "windowed",
        dtype: torch.dtype = torch.float32,
        device: Any = "cpu",
        init: Any = None,
        weight_decay: float = 0.0,
        rows_file: Any = None,
        seed: int = 0,
        threads: int | None = None,
        uses_sum: bool = True,
        init_scale: float = 0.0,
        window: int = 0,
    ) -> None:
        super().__init__()
        if dtype not in _DTYPES:
            raise ValueError(f"dtype {dtype} is unknown; there are: torch.float32, torch.float64")
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"reduction {reduction!r} is unknown; there are: mean, sum, none")
        if str(device) == "cuda" and torch.cuda.is_available():
            device = f"cuda:{torch.cuda.current_device()}"  # what "cuda" means to PyTorch
        self.loss = loss if callable(loss) else losses.make(loss)
        self.reduction = reduction
        self.dtype = dtype
        self.layer = OutputLayer(
            outputs,
            dim,
            head=head,
            loss=losses.Own(uses_sum or _losses.uses_sum(self._inner()), self._inner()),
            dtype=_DTYPES[dtype],
            device=device,
            init=init,
            weight_decay=weight_decay,
            rows_file=rows_file,
            seed=seed,
            threads=threads,
            init_scale=init_scale,
            window=window,
        )
        # What every step looks at, where looking is cheap.
        self._dim, self._array_dtype = self.layer.dim, self.layer.dtype
        self._row, self._strides = (self._dim,), (self._dim * self._array_dtype.itemsize, self._array_dtype.itemsize)
        self._computes = self._inner() is not None
        # Empty, and there to be seen only: by autograd, requires_grad_(), and zero_grad(), which takes its .grad away.
        self._handle = nn.Parameter(torch.empty(0, dtype=dtype, device=_device_of(self.layer)))
        self._journal = Journal(self._handle)  # a step asks it for the handle: parameters of modules are dear to look up

    # ── training ──────────────────────────────────────────────────────────────────────────────────

    def statistics(self, h: Tensor, targets: Any) -> tuple[Tensor, Tensor, Tensor]:
        """q = ‖o‖² (m,), s = Σo (m,) and o at the targets: (m,) or (m, K) as the targets are, else one for each entry.

        In float64, since losses subtract large numbers from each other. Any loss of them trains W exactly.
        """
        h, x = self._input(h)
        batch, core = self._pattern(targets)
        journal = self._journal
        q, s, o = Statistics.apply(h, journal.handle, (x, self.layer, journal, batch, core))
        return q, s, o if batch is None else batch.shaped(o)

    def _look(self, h: Tensor, targets: Any) -> tuple[Tensor, Tensor, Tensor, Targets]:
        """The same, and what is known of the targets."""
        batch = self._targets(targets)
        return *self.statistics(h, batch), batch

    def forward(self, h: Tensor, targets: Any) -> Tensor:
        """The loss that the module was made with, reduced over the examples."""
        if self._computes and self.reduction != "none":
            h, x = self._input(h)
            batch, valued = self._valued(targets)
            journal = self._journal
            factor = 1 / valued.examples if self.reduction == "mean" else 1.0
            of_h, of_W = h.requires_grad, journal.handle.requires_grad
            if torch.is_grad_enabled() and (of_h or of_W):
                return self._judge(h, x, batch, valued, factor, of_h, of_W)
            L = self.layer._core.evaluate(x, valued, None, None)
            return torch.full((), factor * L, dtype=torch.float64, device=h.device)
        loss = self.loss if callable(self.loss) else _losses.of(self.loss)
        each = loss(self, h, targets)
        return each.mean() if self.reduction == "mean" else each.sum() if self.reduction == "sum" else each

    def _judge(
        self, h: Tensor, x: Any, batch: Targets | None, targets: Any, factor: float, of_h: bool, of_W: bool
    ) -> Tensor:
        """The loss that the layer computes itself, as a tensor. The gradient comes with it, since it is known to be wanted."""
        journal, layer = self._journal, self.layer
        core = layer._core
        if journal.on_host:
            # What PyTorch is needed for is done before the layer has driven it out of the caches.
            gradient, grad_h, address = journal.gradients.get((targets.examples, self._dim))
            loss = pending_loss()
            version = h._version
            L, ticket, stamp = core.judge(x, targets, address)
            cell = loss._cell
            cell.value.fill(factor * L)
            given = h, version, x, layer, core, journal, batch, targets, factor
            cell.judged = Judged(*given, ticket, stamp, gradient, grad_h, of_h, of_W, h.is_leaf)
            return loss
        grad_h = layer._room(x)
        L, ticket, stamp = core.judge(x, targets, grad_h)
        loss = torch.full((), factor * L, dtype=torch.float64, device=h.device)
        given = h, h._version, x, layer, core, journal, batch, targets, factor
        judged = Judged(*given, ticket, stamp, grad_h, grad_h, of_h, of_W, h.is_leaf)
        return LayerLoss.apply(h, journal.handle, loss, judged)

    def learn(self, h: Tensor, targets: Any, lr: float, loss: Callable[..., Tensor] | None = None) -> float:
        """``head(h, targets).backward()`` and ``head.step(lr)`` in one, for less: the layer takes its step at once, and ∂L/∂h of
        before the step goes on to the layers below. Returns the loss.

        loss   a function (q, s, o) → scalar of the statistics; None is the one of widehead.losses that the head was made with
        """
        if loss is None and (not self._computes or self.reduction == "none"):
            raise ValueError(
                "learn: the head has no loss of widehead.losses, or does not reduce it; pass one, or use backward() and step()"
            )
        journal, layer = self._journal, self.layer
        if journal.records():
            raise RuntimeError("learn: backward() has recorded a minibatch, for which step() or zero_grad() is to be called")
        h, x = self._input(h)
        if loss is not None:
            return learn_own(self, loss, h, x, self._pattern(targets), lr)
        _, valued = self._valued(targets)
        if journal.on_host:
            gradient, grad_h, out = journal.gradients.get((valued.examples, self._dim))
        else:
            gradient = grad_h = out = layer._room(x)
        factor = 1 / valued.examples if self.reduction == "mean" else 1.0
        if not journal.handle.requires_grad:
            L = layer._core.evaluate(x, valued, None, out)
        elif factor != 1 and layer._options["weight_decay"] != 0:  # lr is not all that counts: examples of less weight
            L = layer._core.step(x, valued, lr, np.full(valued.examples, factor, layer._dtype), out)
            factor = 1.0
        else:
            L = layer._core.step(x, valued, lr * factor, None, out)
        if h.requires_grad:
            if factor != 1:
                gradient *= factor
            send_down(h, grad_h)
        return factor * L

    def step(self, lr: float, grad_scale: float = 1.0) -> None:
        """The exact step of W with rate lr on the loss whose backward() was called.

        Several calls of backward() since the last step count as one on the sum of the losses: their minibatches are joined.
        Without any there is no step. The derivatives are divided by grad_scale. What was recorded is used up.
        """
        journal, layer = self._journal, self.layer
        records = journal.records()
        if not records:
            return
        for record in records:
            if record.h._version != record.version or has_moved(record.h, record.x):
                raise RuntimeError("WideHead: h was modified in place between backward() and step()")
        first = records[0]
        if len(records) == 1 and type(first) is LossRecord and first.factor >= 0:
            _, _, x, _, targets, factor, ticket = first
            if factor == grad_scale or layer._options["weight_decay"] == 0:  # else lr is not all that counts
                layer._core.finish(x, targets, lr * factor / grad_scale, ticket)
                journal.clear()
                return
        if len(records) == 1:
            _, _, hidden, _, targets, a, b, g, ticket = self._in_parts(first)
        else:
            plain = [self._in_parts(record) for record in records]
            hidden = as_array(torch.cat([record.h.detach() for record in plain]))
            batches = [record.batch or Targets.of(record.core, layer, journal.device) for record in plain]
            targets, ticket = joined(batches, layer), 0
            a, g = np.concatenate([record.a for record in plain]), np.concatenate([record.g for record in plain])
            zeros = (np.zeros(len(record.a)) if record.b is None else record.b for record in plain)
            b = np.concatenate(list(zeros)) if layer._core.uses_sum else None
        if grad_scale != 1.0:
            a, b, g, ticket = a / grad_scale, None if b is None else b / grad_scale, g / grad_scale, 0
        layer._core.update(hidden, targets, a, b, g, lr, None, ticket)
        journal.clear()

    def _in_parts(self, record: Record | LossRecord) -> Record:
        """What the statistics path has recorded, or would have."""
        if isinstance(record, Record):
            return record
        before = self._journal
        batch = record.batch or Targets.of(record.core, self.layer, before.device)
        self._journal = Journal(self._handle)
        try:
            self._handle.grad = None
            with torch.enable_grad():
                loss = _losses.of(self._inner() or losses.Own())
                (record.factor * loss(self, record.h.detach(), batch)).sum().backward()
            (found,) = self._journal.records()
        finally:
            self._journal = before
        assert isinstance(found, Record)
        return found

    def _inner(self) -> losses.Loss | None:
        """The loss that the layer computes itself, if it was given one of widehead.losses."""
        return None if callable(self.loss) or isinstance(self.loss, losses.Own) else self.loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets what backward() recorded, as do zero_grad() of a model around this and of its optimizer."""
        super().zero_grad(set_to_none)
        self._journal.clear()

    # ── questions ─────────────────────────────────────────────────────────────────────────────────

    def scores(self, h: Tensor, rows: Any) -> Tensor:
        """The outputs named by rows, (m, len(rows))."""
        return as_tensor(self.layer.scores(self._hidden(h)[2], rows))

    def top_k(self, h: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k best outputs of each example, best first, and their scores: (m, k) each. O(Dd) an example."""
        outputs, scores = self.layer.top_k(self._hidden(h)[2], k)
        return as_tensor(outputs).long(), as_tensor(scores)

    def weights(self, rows: Any = None) -> Tensor:
        """Rows of W (len(rows), d), or all of it: a copy."""
        if self._journal.device.type == "cpu":
            return torch.from_numpy(self.layer.weights(rows))
        count = self.layer.outputs if rows is None else len(rows)
        out = torch.empty((count, self._dim), dtype=self.dtype, device=self._journal.device)
        return self.layer.weights(rows, out=out)

    def extra_repr(self) -> str:
        layer = self.layer
        return f"dim={layer.dim}, outputs={layer.outputs}, head={layer.head!r}, loss={self.loss}, dtype={self.dtype}"

    # ── state ─────────────────────────────────────────────────────────────────────────────────────
    # The arrays of the layer's state, as tensors of the CPU: a loaded head goes on bit for bit.

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        for name, array in self.layer.state().items():
            destination[prefix + name] = torch.from_numpy(array)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        state = {
            name[len(prefix) :]: np.asarray(value.detach().cpu().numpy(), order="C")
            for name, value in state_dict.items()
            if name.startswith(prefix)
        }
        if not state:
            missing_keys.append(prefix + "steps")
            return
        try:
            self.layer.load_state(state)
        except (_core.FileError, ValueError) as error:
            error_msgs.append(f"{prefix[:-1] or 'WideHead'}: {error}")
            return
        self._journal.clear()

    def __getstate__(self) -> dict[str, Any]:  # pickle, copy.deepcopy
        return {name: value for name, value in self.__dict__.items() if name != "_journal"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._handle.grad = None
        self._journal = Journal(self._handle)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> WideHead:  # to(), double(), half(), …
        moved = fn(torch.empty_like(self._handle, requires_grad=False))
        if moved.dtype != self.dtype:
            raise ValueError(f"WideHead: its dtype is {self.dtype} from the start, and cannot become {moved.dtype}")
        if moved.device != self._journal.device:
            self.layer.to(str(moved.device))
        super()._apply(fn, recurse)
        if self._handle is not self._journal.handle or self._handle.device != self._journal.device:
            self._journal = self._journal.moved_to(self._handle)  # PyTorch can also be told to make new parameters
        return self

    # ── arguments ─────────────────────────────────────────────────────────────────────────────────

    def _hidden(self, h: Tensor) -> tuple[Tensor, Tensor, Any]:
        """h as a tensor of the head's type with contiguous rows, the same outside of the graph, and as the layer takes it."""
        if not isinstance(h, Tensor):
            raise TypeError(f"h: {type(h).__name__}, but a tensor is expected")
        if self._journal.on_host:
            # As it nearly always is: NumPy is asked, whose answers are cheaper.
            try:
                plain = h.detach()
                x = plain.numpy()
            except (RuntimeError, TypeError):  # of another device, type or layout
                pass
            else:
                if x.dtype is self._array_dtype and x.strides == self._strides and x.shape[1:] == self._row:
                    return h, plain, x
        device = self._journal.device
        if h.ndim != 2 or h.shape[1] != self._dim:
            raise ValueError(f"h: shape {tuple(h.shape)}, but (m, d) with d = {self._dim} is expected")
        if h.device != device:
            raise ValueError(f"h: the tensor is on {h.device}, but the head is on {device}")
        h = _device.with_contiguous_rows(h.to(self.dtype).resolve_neg())
        plain = h.detach()
        return h, plain, as_array(plain)

    def _input(self, h: Tensor) -> tuple[Tensor, Any]:
        """h likewise, and as the layer takes it: where it nearly always lies by its address, since an array is dearer."""
        if self._journal.on_host and type(h) is Tensor and h.dtype is self.dtype and h.is_contiguous() and h.is_cpu:
            shape = h.shape
            if len(shape) == 2 and shape[1] == self._dim and not h.is_neg():
                try:
                    address = h.data_ptr()
                except RuntimeError:  # of a layout without one
                    address = 0
                if address:
                    return h, (address, shape[0], self._dim)
        h, _, x = self._hidden(h)
        return h, x

    def _targets(self, targets: Any) -> Targets:
        return targets if type(targets) is Targets else Targets(targets, self.layer, self._journal.device)

    def _pattern(self, targets: Any) -> tuple[Targets | None, Any]:
        """The targets for the statistics, as the layer takes them. Where these say all, there need be no Targets."""
        if self._journal.on_host:
            core = one_each(targets, self.layer)
            if core is not None:
                return None, core
        batch = self._targets(targets)
        return batch, batch.core

    def _valued(self, targets: Any) -> tuple[Targets | None, Any]:
        """The same with their values, for the layer's own loss."""
        batch, core = self._pattern(targets)
        return batch, core if batch is None else batch.with_values()
