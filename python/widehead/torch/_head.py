"""WideHead, and the function that autograd sees."""

from __future__ import annotations

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
        self.handle = handle
        self._mark = torch.empty(0, dtype=handle.dtype)
        self._records: list[_Record | _LossRecord] = []
        self._node: Any = None

    def add(self, record: _Record | _LossRecord) -> None:
        if self.handle.grad is None:
            self._records = [record]
            self.handle.grad = self._mark
        else:
            self._records.append(record)

    def records(self) -> list[_Record | _LossRecord]:
        if self._records and self.handle.grad is None:
            self._records = []
        return self._records

    def clear(self) -> None:
        self._records = []

    def is_wanted(self, ctx: Any) -> bool:
        """Whether this pass wants the handle's .grad: torch.autograd.grad(…, h) leaves those of parameters alone.

        The node that stands for the handle is the same in every graph while somebody holds it; asking each is dearer.
        """
        if self._node is None:
            self._node = ctx.next_functions[1][0]
        return torch._C._will_engine_execute_node(self._node)


# What the functions need besides h and the handle is one argument and one attribute of their context: PyTorch looks at
# each. x is h as NumPy sees it; only save_for_backward() keeps h, so that PyTorch lets go of it when it is done. That W has
# not changed between forward() and backward() is seen by the layer's stamp.


class _Statistics(torch.autograd.Function):
    """(h, handle) → q, s, o by entry. The handle stands for W in the graph."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, handle: Tensor, given: tuple[np.ndarray, OutputLayer, _Journal, Targets]
    ) -> tuple[Tensor, Tensor, Tensor]:
        x, layer, journal, batch = given
        q, s, o, ticket = layer._observe(x, batch.core)
        ctx.save_for_backward(h)
        ctx.set_materialize_grads(False)
        ctx.seen = layer, journal, batch, ticket, layer._core.stamp
        return torch.from_numpy(q), torch.from_numpy(np.zeros(q.shape) if s is None else s), torch.from_numpy(o)

    @staticmethod
    def backward(ctx: Any, *by: Tensor | None) -> tuple[Tensor | None, None, None]:
        # The first branch, for create_graph=True, makes a second derivative an error; it costs more.
        return (_differentiate_once if torch.is_grad_enabled() else _differentiate)(ctx, *by)


def _differentiate(
    ctx: Any, by_q: Tensor | None, by_s: Tensor | None, by_o: Tensor | None
) -> tuple[Tensor | None, None, None]:
    layer, journal, batch, ticket, stamp = ctx.seen
    core = layer._core
    if core.stamp != stamp:
        raise RuntimeError("WideHead: W has changed since statistics(); call it again before backward()")
    h = ctx.saved_tensors[0].detach()
    # Copies: what autograd hands out may be its own, or one value stretched over all examples.
    a = np.zeros(batch.core.examples) if by_q is None else np.array(by_q.numpy())
    b = None if by_s is None or not core.uses_sum else np.array(by_s.numpy())
    g = np.zeros(batch.core.nonzeros) if by_o is None else np.array(by_o.numpy())
    grad_h = None
    of_h, of_handle = ctx.needs_input_grad[:2]
    if of_h:
        gradient = layer._buffers.get(h.shape, layer._dtype)
        ticket = core.backpropagate(h.numpy(), batch.core, a, b, g, gradient, ticket)
        grad_h = torch.from_numpy(gradient)
    if of_handle and journal.is_wanted(ctx):
        journal.add(_Record(h, h._version, batch, a, b, g, ticket))
    return grad_h, None, None


_differentiate_once = torch.autograd.function.once_differentiable(_differentiate)


class _Loss(torch.autograd.Function):
    """(h, handle) → factor times the layer's own loss: what the statistics would give, for less of PyTorch's time. The
    gradient is computed with the loss, since it is known to be wanted."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, handle: Tensor, given: tuple[np.ndarray, OutputLayer, _Journal, Targets, Any, float]
    ) -> Tensor:
        x, layer, journal, batch, targets, factor = given
        core = layer._core
        ctx.gradient = gradient = layer._buffers.get(x.shape, x.dtype)
        L, ticket = core.judge(x, targets, gradient)
        ctx.save_for_backward(h)
        ctx.seen = layer, journal, batch, targets, factor, ticket, core.stamp
        return torch.from_numpy(np.array(factor * L))

    @staticmethod
    def backward(ctx: Any, by_L: Tensor) -> tuple[Tensor | None, None, None]:
        return (_differentiate_loss_once if torch.is_grad_enabled() else _differentiate_loss)(ctx, by_L)


def _differentiate_loss(ctx: Any, by_L: Tensor) -> tuple[Tensor | None, None, None]:
    layer, journal, batch, targets, factor, ticket, stamp = ctx.seen
    core = layer._core
    if core.stamp != stamp:
        raise RuntimeError("WideHead: W has changed since the loss was computed; compute it again before backward()")
    h = ctx.saved_tensors[0].detach()
    factor *= by_L.item()
    grad_h = None
    of_h, of_handle = ctx.needs_input_grad[:2]
    if of_h:
        gradient, ctx.gradient = ctx.gradient, None  # from here on it is autograd's
        if gradient is None:  # for the second time, with retain_graph
            gradient = layer._buffers.get(h.shape, layer._dtype)
            _, ticket = core.judge(h.numpy(), targets, gradient)
        if factor != 1:
            np.multiply(gradient, factor, out=gradient, casting="same_kind")
        grad_h = torch.from_numpy(gradient)
    if of_handle and journal.is_wanted(ctx):
        journal.add(_LossRecord(h, h._version, batch, targets, factor, ticket))
    return grad_h, None, None


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
        self._dim, self._outputs = self.layer.dim, self.layer.outputs
        # Empty, and there to be seen only: by autograd, requires_grad_(), and zero_grad(), which takes its .grad away.
        self._handle = nn.Parameter(torch.empty(0, dtype=dtype))
        self._journal = _Journal(self._handle)  # a step asks it for the handle: parameters of modules are dear to look up

    # ── training ──────────────────────────────────────────────────────────────────────────────────

    def statistics(self, h: Tensor, targets: Any) -> tuple[Tensor, Tensor, Tensor]:
        """q = ‖o‖² (m,), s = Σo (m,) and o at the targets: (m,) or (m, K) as the targets are, else one for each entry.

        In float64, since losses subtract large numbers from each other. Any loss of them trains W exactly.
        """
        return self._look(h, targets)[:3]

    def _look(self, h: Tensor, targets: Any) -> tuple[Tensor, Tensor, Tensor, Targets]:
        h, x = self._hidden(h)
        batch, journal = self._targets(targets), self._journal
        q, s, o = _Statistics.apply(h, journal.handle, (x, self.layer, journal, batch))
        return q, s, batch.shaped(o), batch

    def forward(self, h: Tensor, targets: Any) -> Tensor:
        """The loss that the module was made with, reduced over the examples."""
        if self.reduction != "none" and self._inner() is not None:
            h, x = self._hidden(h)
            batch, journal = self._targets(targets), self._journal
            valued = batch.with_values()
            factor = 1 / batch.examples if self.reduction == "mean" else 1.0
            if torch.is_grad_enabled() and (h.requires_grad or journal.handle.requires_grad):
                return _Loss.apply(h, journal.handle, (x, self.layer, journal, batch, valued, factor))
            L = self.layer._core.evaluate(x, valued, None, None)
            return torch.tensor(factor * L, dtype=torch.float64)
        loss = self.loss if callable(self.loss) else _losses.of(self.loss)
        each = loss(self, h, targets)
        return each.mean() if self.reduction == "mean" else each.sum() if self.reduction == "sum" else each

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
            if record.h._version != record.version:
                raise RuntimeError("WideHead: h was modified in place between backward() and step()")
        first = records[0]
        if len(records) == 1 and type(first) is _LossRecord and first.factor >= 0:
            h, _, _, targets, factor, ticket = first
            if factor == grad_scale or layer._options["weight_decay"] == 0:  # else lr is not all that counts
                layer._core.finish(h.numpy(), targets, lr * factor / grad_scale, ticket)
                journal.clear()
                return
        if len(records) == 1:
            tensor, _, batch, a, b, g, ticket = self._in_parts(first)
            hidden, targets = tensor.numpy(), batch.core
        else:
            plain = [self._in_parts(record) for record in records]
            hidden = torch.cat([record.h for record in plain]).numpy()
            targets, ticket = joined([record.batch for record in plain], layer.dtype), 0
            a, g = np.concatenate([record.a for record in plain]), np.concatenate([record.g for record in plain])
            zeros = (np.zeros(len(record.a)) if record.b is None else record.b for record in plain)
            b = np.concatenate(list(zeros)) if layer._core.uses_sum else None
        if grad_scale != 1.0:
            a, b, g, ticket = a / grad_scale, None if b is None else b / grad_scale, g / grad_scale, 0
        layer._core.update(hidden, targets, a, b, g, lr, None, ticket)
        journal.clear()

    def _in_parts(self, record: _Record | _LossRecord) -> _Record:
        """What the statistics path has recorded, or would have."""
        if isinstance(record, _Record):
            return record
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

    # ── questions ─────────────────────────────────────────────────────────────────────────────────

    def scores(self, h: Tensor, rows: Any) -> Tensor:
        """The outputs named by rows, (m, len(rows))."""
        return torch.from_numpy(self.layer.scores(self._hidden(h)[1], rows))

    def top_k(self, h: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k best outputs of each example, best first, and their scores: (m, k) each. O(Dd) an example."""
        outputs, scores = self.layer.top_k(self._hidden(h)[1], k)
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
        super()._apply(fn, recurse)
        if self._handle is not self._journal.handle:  # PyTorch can be told to make new parameters
            self._journal = _Journal(self._handle)
        return self

    # ── arguments ─────────────────────────────────────────────────────────────────────────────────

    def _hidden(self, h: Tensor) -> tuple[Tensor, np.ndarray]:
        """h as a tensor of the head's type with contiguous rows, and the same for NumPy."""
        if not isinstance(h, Tensor):
            raise TypeError(f"h: {type(h).__name__}, but a tensor is expected")
        if h.dtype is self.dtype and h.is_cpu and h.layout is torch.strided:
            x = h.detach().numpy()  # from here on NumPy is asked, whose answers are cheaper
            if x.ndim == 2 and x.shape[1] == self._dim and x.flags.c_contiguous:
                return h, x
        if h.ndim != 2 or h.shape[1] != self._dim:
            raise ValueError(f"h: shape {tuple(h.shape)}, but (m, d) with d = {self._dim} is expected")
        if h.device.type != "cpu":
            raise ValueError(f"h: the tensor is on {h.device}, but the head is on cpu")
        h = h.to(self.dtype)
        h = h if h.stride(1) == 1 and h.stride(0) >= h.shape[1] else h.contiguous()
        return h, h.detach().numpy()

    def _targets(self, targets: Any) -> Targets:
        return targets if isinstance(targets, Targets) else Targets(targets, self._outputs, self.layer._dtype)
