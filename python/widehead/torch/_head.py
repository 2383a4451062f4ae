"""WideHead, and the function that autograd sees."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .. import _core, losses
from .._layer import OutputLayer
from . import _losses
from ._targets import Targets, joined

_DTYPES = {torch.float32: "float32", torch.float64: "float64"}


class _Record(NamedTuple):
    """What backward() knows of a minibatch and step() needs."""

    h: Tensor
    version: int  # of h
    batch: Targets
    a: np.ndarray  # ∂L/∂q
    b: np.ndarray | None  # ∂L/∂s
    g: np.ndarray  # ∂L/∂o
    ticket: int  # for what the layer still knows of it


class _LossRecord(NamedTuple):
    """The same for the loss that the layer computes itself, times a factor."""

    h: Tensor
    version: int
    batch: Targets
    core: Any  # the targets with their values
    factor: float
    ticket: int


class _Journal:
    """What backward() has recorded since the last step. It counts as long as the handle has a .grad: zero_grad() of whoever
    holds the handle, the head, a model around it or an optimizer, takes that away."""

    def __init__(self, handle: Tensor) -> None:
        self._handle = handle
        self._mark = torch.empty(0, dtype=handle.dtype)
        self._records: list[_Record | _LossRecord] = []

    def add(self, record: _Record | _LossRecord) -> None:
        self.records().append(record)
        self._handle.grad = self._mark

    def records(self) -> list[_Record | _LossRecord]:
        if self._handle.grad is None:
            self._records = []
        return self._records

    def clear(self) -> None:
        self._records = []
        self._handle.grad = None


class _Statistics(torch.autograd.Function):
    """(h, handle) → q, s, o by entry. The handle stands for W in the graph."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, handle: Tensor, head: WideHead, batch: Targets) -> tuple[Tensor, Tensor, Tensor]:
        q, s, o, ctx.ticket = head.layer._observe(h.detach().numpy(), batch.core)
        ctx.save_for_backward(h)
        ctx.set_materialize_grads(False)
        ctx.head, ctx.batch, ctx.stamp = weakref.ref(head), batch, head._stamp()
        return torch.from_numpy(q), torch.from_numpy(np.zeros_like(q) if s is None else s), torch.from_numpy(o)

    @staticmethod
    def backward(ctx: Any, *by: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        # The first branch, for create_graph=True, makes a second derivative an error; it costs more.
        return (_differentiate_once if torch.is_grad_enabled() else _differentiate)(ctx, *by)


def _differentiate(ctx: Any, *by: Tensor | None) -> tuple[Tensor | None, None, None, None]:
    head: WideHead | None = ctx.head()
    if head is None or head._stamp() != ctx.stamp:
        raise RuntimeError("WideHead: W has changed since statistics(); call it again before backward()")
    core, batch, ticket = head.layer._core, ctx.batch, ctx.ticket
    h = ctx.saved_tensors[0].detach()
    # Copies: what autograd hands out may be its own, or one value stretched over all examples.
    a, b, g = (None if each is None else np.array(each.numpy()) for each in by)
    a = np.zeros(batch.core.examples) if a is None else a
    g = np.zeros(batch.core.nonzeros) if g is None else g
    b = b if core.uses_sum else None
    grad_h = None
    if ctx.needs_input_grad[0]:
        gradient = head.layer._buffers.get(tuple(h.shape), head.layer.dtype)
        ticket = core.backpropagate(h.numpy(), batch.core, a, b, g, gradient, ticket)
        grad_h = torch.from_numpy(gradient)
    # Not for torch.autograd.grad(…, h), which leaves the .grad of parameters alone.
    if ctx.needs_input_grad[1] and torch._C._will_engine_execute_node(ctx.next_functions[1][0]):
        head._journal.add(_Record(h, h._version, batch, a, b, g, ticket))
    return grad_h, None, None, None


_differentiate_once = torch.autograd.function.once_differentiable(_differentiate)


class _Loss(torch.autograd.Function):
    """(h, handle) → factor times the layer's own loss: what the statistics would give, for less of PyTorch's time. The
    gradient is computed with the loss, since it is known to be wanted."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, handle: Tensor, head: WideHead, batch: Targets, factor: float) -> Tensor:
        ctx.core = batch.with_values()
        ctx.gradient = head.layer._buffers.get(tuple(h.shape), head.layer.dtype)
        L, ctx.ticket = head.layer._core.judge(h.detach().numpy(), ctx.core, ctx.gradient)
        ctx.save_for_backward(h)
        ctx.head, ctx.batch, ctx.factor, ctx.stamp = weakref.ref(head), batch, factor, head._stamp()
        return torch.from_numpy(np.array(factor * L))

    @staticmethod
    def backward(ctx: Any, by_L: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        return (_differentiate_loss_once if torch.is_grad_enabled() else _differentiate_loss)(ctx, by_L)


def _differentiate_loss(ctx: Any, by_L: Tensor) -> tuple[Tensor | None, None, None, None, None]:
    head: WideHead | None = ctx.head()
    if head is None or head._stamp() != ctx.stamp:
        raise RuntimeError("WideHead: W has changed since the loss was computed; compute it again before backward()")
    h = ctx.saved_tensors[0].detach()
    factor = ctx.factor * by_L.item()
    grad_h = None
    if ctx.needs_input_grad[0]:
        gradient, ctx.gradient = ctx.gradient, None  # from here on it is autograd's
        if gradient is None:  # for the second time, with retain_graph
            gradient = head.layer._buffers.get(tuple(h.shape), head.layer.dtype)
            _, ctx.ticket = head.layer._core.judge(h.numpy(), ctx.core, gradient)
        if factor != 1:
            np.multiply(gradient, factor, out=gradient, casting="same_kind")
        grad_h = torch.from_numpy(gradient)
    if ctx.needs_input_grad[1] and torch._C._will_engine_execute_node(ctx.next_functions[1][0]):
        head._journal.add(_LossRecord(h, h._version, ctx.batch, ctx.core, factor, ctx.ticket))
    return grad_h, None, None, None, None


_differentiate_loss_once = torch.autograd.function.once_differentiable(_differentiate_loss)


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
        # Empty, and there to be seen only: by autograd, requires_grad_(), and zero_grad(), which takes its .grad away.
        self._handle = nn.Parameter(torch.empty(0, dtype=dtype))
        self._loads = 0
        self._journal = _Journal(self._handle)

    # ── training ──────────────────────────────────────────────────────────────────────────────────

    def statistics(self, h: Tensor, targets: Any) -> tuple[Tensor, Tensor, Tensor]:
        """q = ‖o‖² (m,), s = Σo (m,) and o at the targets: (m,) or (m, K) as the targets are, else one for each entry.

        In float64, since losses subtract large numbers from each other. Any loss of them trains W exactly.
        """
        return self._look(h, targets)[:3]

    def _look(self, h: Tensor, targets: Any) -> tuple[Tensor, Tensor, Tensor, Targets]:
        batch = self._targets(targets)
        q, s, o = _Statistics.apply(self._hidden(h), self._handle, self, batch)
        return q, s, batch.shaped(o), batch

    def forward(self, h: Tensor, targets: Any) -> Tensor:
        """The loss that the module was made with, reduced over the examples."""
        if self._inner() is not None and self.reduction != "none":
            h, batch = self._hidden(h), self._targets(targets)
            factor = 1 / batch.examples if self.reduction == "mean" else 1.0
            if torch.is_grad_enabled() and (h.requires_grad or self._handle.requires_grad):
                return _Loss.apply(h, self._handle, self, batch, factor)
            L = self.layer._core.evaluate(h.detach().numpy(), batch.with_values(), None, None)
            return torch.tensor(factor * L, dtype=torch.float64)
        loss = self.loss if callable(self.loss) else _losses.of(self.loss)
        each = loss(self, h, targets)
        return each.mean() if self.reduction == "mean" else each.sum() if self.reduction == "sum" else each

    def step(self, lr: float, grad_scale: float = 1.0) -> None:
        """The exact step of W with rate lr on the loss whose backward() was called.

        Several calls of backward() since the last step count as one on the sum of the losses: their minibatches are joined.
        Without any there is no step. The derivatives are divided by grad_scale. What was recorded is used up.
        """
        records = self._journal.records()
        if not records:
            return
        if any(record.h._version != record.version for record in records):
            raise RuntimeError("WideHead: h was modified in place between backward() and step()")
        first = records[0]
        if len(records) == 1 and isinstance(first, _LossRecord) and first.factor >= 0:
            if self.layer._options["weight_decay"] == 0 or first.factor == grad_scale:  # else lr is not all that counts
                rate = lr * first.factor / grad_scale
                self.layer._core.finish(first.h.numpy(), first.core, rate, first.ticket)
                self._journal.clear()
                return
        plain = [self._in_parts(record) if isinstance(record, _LossRecord) else record for record in records]
        if len(plain) == 1:
            tensor, _, batch, a, b, g, ticket = plain[0]
            h, targets = tensor.numpy(), batch.core
        else:
            h = torch.cat([record.h for record in plain]).numpy()
            targets, ticket = joined([record.batch for record in plain], self.layer.dtype), 0
            a, g = np.concatenate([record.a for record in plain]), np.concatenate([record.g for record in plain])
            zeros = (np.zeros(len(record.a)) if record.b is None else record.b for record in plain)
            b = np.concatenate(list(zeros)) if self.layer._core.uses_sum else None
        if grad_scale != 1.0:
            a, b, g, ticket = a / grad_scale, None if b is None else b / grad_scale, g / grad_scale, 0
        self.layer._core.update(h, targets, a, b, g, lr, None, ticket)
        self._journal.clear()

    def _in_parts(self, record: _LossRecord) -> _Record:
        """What the statistics path would have recorded."""
        before = self._journal
        self._journal = _Journal(self._handle)
        try:
            self._handle.grad = None
            with torch.enable_grad():
                loss = _losses.of(self._inner() or losses.Own())
                (record.factor * loss(self, record.h, record.batch)).sum().backward()
            (found,) = self._journal.records()
        finally:
            self._journal = before
        assert isinstance(found, _Record)
        return found

    def _inner(self) -> losses.Loss | None:
        """The loss that the layer computes itself, if it was given one of widehead.losses."""
        return None if callable(self.loss) or isinstance(self.loss, losses.Own) else self.loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets what backward() recorded, as do zero_grad() of a model around this and of its optimizer."""
        super().zero_grad(set_to_none)
        self._journal.clear()

    def _stamp(self) -> tuple[int, int]:
        """Another one after every change of W."""
        return self.layer.steps, self._loads

    # ── questions ─────────────────────────────────────────────────────────────────────────────────

    def scores(self, h: Tensor, rows: Any) -> Tensor:
        """The outputs named by rows, (m, len(rows))."""
        return torch.from_numpy(self.layer.scores(self._hidden(h).detach().numpy(), rows))

    def top_k(self, h: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k best outputs of each example, best first, and their scores: (m, k) each. O(Dd) an example."""
        outputs, scores = self.layer.top_k(self._hidden(h).detach().numpy(), k)
        return torch.from_numpy(outputs.astype(np.int64)), torch.from_numpy(scores)

    def weights(self, rows: Any = None) -> Tensor:
        """Rows of W (len(rows), d), or all of it: a copy."""
        return torch.from_numpy(self.layer.weights(rows))

    def extra_repr(self) -> str:
        layer = self.layer
        return f"dim={layer.dim}, outputs={layer.outputs}, head={layer.head!r}, loss={self.loss}, dtype={self.dtype}"

    # ── state ─────────────────────────────────────────────────────────────────────────────────────
    # The arrays of the layer's state, as tensors: a loaded head goes on bit for bit.

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
            name[len(prefix) :]: np.asarray(value.detach().numpy(), order="C")
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
        self._loads += 1

    def __getstate__(self) -> dict[str, Any]:  # pickle, copy.deepcopy
        return {name: value for name, value in self.__dict__.items() if name != "_journal"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._handle.grad = None
        self._journal = _Journal(self._handle)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> WideHead:  # to(), double(), half(), …
        moved = fn(torch.empty(0, dtype=self.dtype))
        if moved.device.type != "cpu":
            raise ValueError(f"device {str(moved.device)!r}: this build of widehead has the device cpu only")
        if moved.dtype != self.dtype:
            raise ValueError(f"WideHead: its dtype is {self.dtype} from the start, and cannot become {moved.dtype}")
        return super()._apply(fn, recurse)

    # ── arguments ─────────────────────────────────────────────────────────────────────────────────

    def _hidden(self, h: Tensor) -> Tensor:
        if not isinstance(h, Tensor):
            raise TypeError(f"h: {type(h).__name__}, but a tensor is expected")
        if h.ndim != 2 or h.shape[1] != self.layer.dim:
            raise ValueError(f"h: shape {tuple(h.shape)}, but (m, d) with d = {self.layer.dim} is expected")
        if h.device.type != "cpu":
            raise ValueError(f"h: the tensor is on {h.device}, but the head is on cpu")
        h = h.to(self.dtype)
        return h if h.stride(1) == 1 and h.stride(0) >= h.shape[1] else h.contiguous()

    def _targets(self, targets: Any) -> Targets:
        return targets if isinstance(targets, Targets) else Targets(targets, self.layer.outputs, self.layer.dtype)
