"""A ready-made loss, which the layer computes itself: a tensor, and its graph if anybody asks for it.

A graph of one function, and the engine that runs through it, are dear beside a step: they are code and data that the step has
driven out of the caches. Most losses are only told to go ``backward()``, for which neither is needed. So on the CPU a
loss is a PendingLoss, that knows what its graph would; whatever else is done with it is done with one that has the graph.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._layer import OutputLayer
from ._graph import Function, Journal, LossRecord, as_array, as_tensor, has_moved, once, run_backward
from ._targets import Targets

_CHANGED = "WideHead: h has been modified by an inplace operation since the loss was computed"
_DETACHED = "WideHead: h has been detached in place since the loss was computed"
_MOVED = "WideHead: h has been given other memory since the loss was computed"
_TWICE = (
    "WideHead: backward() through the loss a second time, but what it needs was freed by the first; "
    "say retain_graph=True there"
)


class Judged(NamedTuple):
    """What the layer said of a minibatch."""

    h: Tensor
    version: int  # of h
    x: Any  # h as the layer takes it
    layer: OutputLayer
    core: Any  # of the layer, then
    journal: Journal
    batch: Targets | None  # None for one target an example, of which the core says all
    targets: Any  # with their values
    factor: float  # of the reduction
    ticket: int
    stamp: int  # of W
    gradient: Any  # ∂L/∂h without the factor, and the same as a tensor; None where they were used
    grad_h: Tensor | None
    of_h: bool  # whether they are wanted
    of_W: bool
    is_leaf: bool  # whether h was one

    def check(self) -> None:
        if self.core is not self.layer._core or self.core.stamp != self.stamp:
            raise RuntimeError("WideHead: W has changed since the loss was computed; compute it again before backward()")

    def change_of(self, h: Tensor) -> str | None:
        """What is wrong with h, which has not been in a graph since, if anything is."""
        if h._version != self.version:
            return _CHANGED
        return None if h.is_leaf is self.is_leaf else _DETACHED

    def record(self, h: Tensor, version: int, x: Any, factor: float, ticket: int) -> None:
        self.journal.add(LossRecord(h, version, x, self.batch, self.targets, factor, ticket))


# ── gradients for h ──────────────────────────────────────────────────────────────────────────────

# Without these there is no telling whether a leaf has hooks: then the engine is asked.
_HOOKS_ARE_SEEN = hasattr(Tensor, "_backward_hooks") and hasattr(Tensor, "_post_accumulate_grad_hooks")
# The engine does not count the one function it starts from among those it will run, but register_multi_grad_hook() does: with
# this beside h, it starts from neither.
_BESIDE = torch.empty(0, requires_grad=True, device="cpu"), torch.empty(0, device="cpu")


def send_down(h: Tensor, grad_h: Tensor) -> None:
    """h.backward(grad_h). A leaf without hooks that has no gradient yet is given it; the engine would do just that."""
    if not h.requires_grad:  # any more: the engine would leave it alone
        return
    if not _HOOKS_ARE_SEEN or h._backward_hooks is not None:
        run_backward((h, grad_h), _BESIDE)
    elif (
        type(h) is Tensor
        and h.is_leaf
        and h.grad is None
        and h._post_accumulate_grad_hooks is None  # type: ignore[attr-defined]
    ):
        h.grad = grad_h
    else:
        run_backward((h, grad_h))


# ── the graph ────────────────────────────────────────────────────────────────────────────────────


class LayerLoss(Function):
    """(h, handle) → the loss, which is there already: it is given its place in the graph."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, handle: Tensor, loss: Tensor, judged: Judged) -> Tensor:
        ctx.mark_dirty(loss)
        plain = h.detach()
        ctx.save_for_backward(plain, h)  # the latter for its graph
        x = judged.x
        # What happened before there was a graph; PyTorch looks at what is saved from here on.
        ctx.wrong = judged.change_of(h)
        if has_moved(h, x) or (isinstance(x, np.ndarray) and x.size > 0 and not np.may_share_memory(x, plain.numpy())):
            ctx.wrong = _MOVED
        ctx.seen = [judged._replace(h=None), (x, judged.gradient, judged.grad_h)]
        return loss

    @staticmethod
    def backward(ctx: Any, by_L: Tensor) -> tuple[Tensor | None, None, None, None]:
        return (_differentiate_once if torch.is_grad_enabled() else _differentiate)(ctx, by_L)


def _differentiate(ctx: Any, by_L: Tensor) -> tuple[Tensor | None, None, None, None]:
    if ctx.wrong is not None:
        raise RuntimeError(ctx.wrong)
    seen = ctx.seen
    h, _ = ctx.saved_tensors
    judged: Judged = seen[0]
    judged.check()
    x, gradient, grad_h = seen[1]
    seen[1] = (None, None, None)  # the gradient is autograd's from here on, and h is kept by nobody for longer than need be
    ticket, factor = judged.ticket, judged.factor * by_L.item()
    if x is None or has_moved(h, x):  # hooks for saved tensors may hand out copies, and checkpoint() computes h again
        x = as_array(h)
    if grad_h is None and judged.of_h:  # for the second time, with retain_graph
        gradient = judged.layer._room(x)
        grad_h = as_tensor(gradient)
        _, ticket, _ = judged.core.judge(x, judged.targets, gradient)
    if judged.of_h and factor != 1:
        gradient *= factor
    if judged.of_W and judged.journal.is_wanted(ctx):
        judged.record(h, h._version, x, factor, ticket)
    return grad_h if judged.of_h else None, None, None, None


_differentiate_once = once(_differentiate)


class _Spent(Function):
    """The graph of a loss that has gone backward() without one."""

    @staticmethod
    def forward(ctx: Any, anything: Tensor, loss: Tensor) -> Tensor:
        ctx.mark_dirty(loss)
        return loss

    @staticmethod
    def backward(ctx: Any, by_L: Tensor) -> Any:
        raise RuntimeError(_TWICE)


# ── the tensor ───────────────────────────────────────────────────────────────────────────────────


class LossTensor(Tensor):
    """A ready-made loss: a tensor like others, but that backward() without arguments goes to the engine straight away."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # as with parameters: what is computed from it is plain

    def backward(
        self,
        gradient: Tensor | None = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """As torch.Tensor's."""
        if gradient is None and not retain_graph and not create_graph and inputs is None:
            self._go_backward()
        else:
            Tensor.backward(self._with_graph(), gradient, retain_graph, create_graph, inputs)

    def _go_backward(self) -> None:
        run_backward((self, torch.from_numpy(np.array(1.0))))  # ones_like() is dearer: nobody has called it just now

    def _with_graph(self) -> Tensor:
        return self

    def __format__(self, spec: str) -> str:  # as a plain tensor
        return self.detach().item().__format__(spec)

    def __reduce_ex__(self, protocol: Any) -> Any:  # saved as a plain tensor
        return self.as_subclass(Tensor).__reduce_ex__(protocol)


class _Cell:
    """What a PendingLoss knows. Its hook has that, too, but not the tensor, which would be a circle."""

    __slots__ = ("graph", "judged", "value")

    def __init__(self) -> None:
        self.value = np.empty(())  # the memory of the loss
        self.judged: Judged | None = None  # None after backward()
        self.graph: Tensor | None = None  # the loss with its graph, where somebody has asked for it

    def with_graph(self) -> Tensor:
        if self.graph is None:
            judged, self.judged = self.judged, None
            with torch.inference_mode(False), torch.enable_grad():
                loss: Any = torch.from_numpy(self.value)
                loss.__class__ = LossTensor  # as PyTorch does with its parameters: as_subclass() would make another tensor
                if judged is None:
                    self.graph = _Spent.apply(torch.empty(0, requires_grad=True), loss)
                else:
                    self.graph = LayerLoss.apply(judged.h, judged.journal.handle, loss, judged)
        return self.graph

    def receive(self, by_L: Tensor) -> None:
        """What the hook does with a derivative that has come down to the loss."""
        self.with_graph().backward(by_L, retain_graph=True)


class PendingLoss(LossTensor):
    """The same before it has a graph. Functions of PyTorch that are given it get one with a graph instead. To those that do not
    ask for __torch_function__, as functions do not that users write for autograd, it is a leaf; what comes down to that
    goes on into the graph by a hook."""

    _cell: _Cell

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _LOOKS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return func(*_with_graphs(args), **_with_graphs(kwargs or {}))

    def _with_graph(self) -> Tensor:
        return self._cell.with_graph()

    def _go_backward(self) -> None:
        cell = self._cell
        judged = cell.judged
        if judged is None:
            cell.with_graph().backward()
            return
        judged.check()
        h, factor = judged.h, judged.factor
        wrong = judged.change_of(h)
        if wrong is not None:
            raise RuntimeError(wrong)
        cell.judged = None
        if judged.of_W:
            judged.record(h, judged.version, judged.x, factor, judged.ticket)
        if judged.of_h:
            if factor != 1:
                judged.gradient.__imul__(factor)
            send_down(h, judged.grad_h)  # type: ignore[arg-type]


# What may be asked of a loss without a graph, since the answer is the same, and has none either.
_LOOKS = frozenset(
    [
        *(Tensor.item, Tensor.tolist, Tensor.detach, Tensor.__float__, Tensor.__bool__),
        *(Tensor.isnan, Tensor.isinf, Tensor.isfinite, torch.isnan, torch.isinf, torch.isfinite),
    ]
)


def _with_graphs(arguments: Any) -> Any:
    if type(arguments) is PendingLoss:
        return arguments._with_graph()
    if isinstance(arguments, (tuple, list)) and not isinstance(arguments, torch.Size):
        found = [_with_graphs(each) for each in arguments]
        return found if isinstance(arguments, list) else tuple(found)
    if isinstance(arguments, dict):
        return {name: _with_graphs(each) for name, each in arguments.items()}
    return arguments


# Many at once, tensors take a microsecond each; one that is made after a step takes 25.
_MANY = 32
_losses: list[PendingLoss] = []


def _make_losses() -> PendingLoss:
    made = []
    with torch.inference_mode(False):
        for _ in range(_MANY):
            cell = _Cell()
            loss: Any = torch.from_numpy(cell.value)
            loss.requires_grad = True
            loss.register_hook(cell.receive)
            loss._cell = cell
            loss.__class__ = PendingLoss
            made.append(loss)
    one = made.pop()  # before other threads see them
    _losses.extend(made)
    return one


def pending_loss() -> PendingLoss:
    """A loss whose cell is yet to be filled."""
    try:
        return _losses.pop()
    except IndexError:
        return _make_losses()
