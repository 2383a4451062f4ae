"""What autograd sees of a head, and what backward() leaves behind for the step. Ready-made losses: _ready.py."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._layer import OutputLayer
from ._stock import Answers, Gradients
from ._targets import Targets

# What PyTorch's own front doors end in; where another PyTorch has other names, the doors themselves. Behind them is all that
# counts here: the doors look for kinds of tensors and transforms that a layer refuses anyway.
_engine_run_backward: Any = getattr(torch.autograd.graph, "_engine_run_backward", None)
Function: Any = getattr(torch.autograd.function, "_SingleLevelFunction", torch.autograd.Function)


# The layer takes and fills arrays of NumPy's on the CPU, and tensors on a GPU.


def as_array(tensor: Tensor) -> Any:
    return tensor.numpy() if tensor.is_cpu else tensor


def as_tensor(array: Any) -> Tensor:
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else array


def _copy_on_host(tensor: Tensor) -> np.ndarray:
    return np.array((tensor if tensor.is_cpu else tensor.cpu()).numpy())


def run_backward(*roots: tuple[Tensor, Tensor]) -> None:
    """tensor.backward(gradient), or several of these at once, for gradients that are known to fit: to find that out takes as
    long as the engine does."""
    tensors, gradients = zip(*roots)
    if _engine_run_backward is None:
        torch.autograd.backward(tensors, gradients)
    else:
        _engine_run_backward(tensors, gradients, False, False, (), allow_unreachable=True, accumulate_grad=True)


def has_moved(h: Tensor, x: Any) -> bool:
    """Whether x is an address at which h is no longer."""
    return type(x) is tuple and h.data_ptr() != x[0]


class _NoMore(Function):
    """(∂L/∂h, h, …) → ∂L/∂h, of which there is no derivative. Not so once_differentiable: to that, ∂L/∂h depends on what came
    down to the layer only, and where that is a constant it lets 0 be taken for the derivative by h."""

    @staticmethod
    def forward(ctx: Any, grad_h: Tensor, *of: Tensor | None) -> Tensor:
        return grad_h.view_as(grad_h)

    @staticmethod
    def backward(ctx: Any, by: Tensor) -> Any:
        raise RuntimeError("WideHead: trying to differentiate twice, but a head has no second derivatives")


def once(differentiate: Callable[..., Any]) -> Callable[..., Any]:
    """The same for create_graph=True: a second derivative is an error. h is the last that the function has saved."""

    def run(ctx: Any, *by: Tensor | None) -> Any:
        h = ctx.saved_tensors[-1]
        with torch.no_grad():
            grad_h, *others = differentiate(ctx, *by)
        return None if grad_h is None else _NoMore.apply(grad_h, h, *by), *others

    return run


class Record(NamedTuple):
    """What backward() knows of a minibatch and step() needs."""

    h: Tensor  # perhaps with its graph
    version: int  # of h
    x: Any  # h as the layer takes it
    batch: Targets | None  # None for one target an example, of which the core says all
    core: Any  # the targets
    a: np.ndarray  # ∂L/∂q
    b: np.ndarray | None  # ∂L/∂s
    g: np.ndarray  # ∂L/∂o
    ticket: int  # for what the layer still knows of it


class LossRecord(NamedTuple):
    """The same for the loss that the layer computes itself, times a factor."""

    h: Tensor
    version: int
    x: Any
    batch: Targets | None
    core: Any  # the targets with their values
    factor: float
    ticket: int


class Journal:
    """What backward() has recorded since the last step. It counts as long as the handle has a .grad: zero_grad() of whoever
    holds the handle, the head, a model around it or an optimizer, takes that away."""

    def __init__(self, handle: Tensor) -> None:
        self.handle = handle
        self.device = handle.device  # asking a tensor is dearer
        self.on_host = handle.is_cpu
        self.gradients = Gradients(np.dtype(str(handle.dtype).removeprefix("torch.")))  # for a head on the host
        self.answers, self.leaves = Answers(), Answers(leaves=True)
        self._mark = torch.empty_like(handle, requires_grad=False)
        self._records: list[Record | LossRecord] = []
        self._node: Any = None

    def add(self, record: Record | LossRecord) -> None:
        if self.handle.grad is None:
            self._records = [record]
            self.handle.grad = self._mark
        else:
            self._records.append(record)

    def records(self) -> list[Record | LossRecord]:
        if self._records and self.handle.grad is None:
            self._records = []
        return self._records

    def clear(self) -> None:
        self._records = []

    def moved_to(self, handle: Tensor) -> Journal:
        """The journal of a handle that is new, or on another device. What the layer knew of the records is lost."""
        journal = Journal(handle)
        for record in self.records():
            h = record.h.detach().to(handle.device)
            if record.batch is not None:
                record.batch.move(handle.device)
            journal._records.append(record._replace(h=h, version=h._version, x=as_array(h), ticket=0))
        return journal

    def is_wanted(self, ctx: Any) -> bool:
        """Whether this pass wants the handle's .grad: torch.autograd.grad(…, h) leaves those of parameters alone.

        The node that stands for the handle is the same in every graph while somebody holds it; asking each is dearer.
        """
        if self._node is None:
            self._node = ctx.next_functions[1][0]
        return torch._C._will_engine_execute_node(self._node)


# What the function needs besides h and the handle is one argument and one attribute of its context: PyTorch looks at
# each. x is h as the layer takes it; only save_for_backward() keeps h, so that PyTorch lets go of it when it is done. That W
# has not changed between forward() and backward() is seen by the layer's stamp; that it has not moved, by its core.


class Statistics(Function):
    """(h, handle) → q, s, o by entry. The handle stands for W in the graph."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, handle: Tensor, given: tuple[Any, OutputLayer, Journal, Targets | None, Any]
    ) -> tuple[Tensor, Tensor, Tensor]:
        x, layer, journal, batch, targets = given
        core = layer._core
        (q, s, o), found, _ = journal.answers.get(targets.examples, targets.nonzeros, core.uses_sum)
        ticket = core.observe(x, targets, q, s, o)
        ctx.save_for_backward(h)
        ctx.set_materialize_grads(False)
        ctx.seen = [x, weakref.ref(h), layer, core, journal, batch, targets, ticket, core.stamp]
        return found if journal.on_host else tuple(each.to(h.device) for each in found)  # type: ignore[return-value]

    @staticmethod
    def backward(ctx: Any, *by: Tensor | None) -> tuple[Tensor | None, None, None]:
        return (_differentiate_once if torch.is_grad_enabled() else _differentiate)(ctx, *by)


def _differentiate(
    ctx: Any, by_q: Tensor | None, by_s: Tensor | None, by_o: Tensor | None
) -> tuple[Tensor | None, None, None]:
    seen = ctx.seen
    x, given, layer, core, journal, batch, targets, ticket, stamp = seen
    if core is not layer._core or core.stamp != stamp:
        raise RuntimeError("WideHead: W has changed since statistics(); call it again before backward()")
    (h,) = ctx.saved_tensors
    if x is None:  # for the second time, with retain_graph
        x = as_array(h.detach())
    elif has_moved(h, x):
        if given() is h:
            raise RuntimeError("WideHead: h has been given other memory since statistics()")
        x = as_array(h.detach())  # a copy by hooks for saved tensors, or computed again by checkpoint()
    seen[0] = None  # h is kept by nobody for longer than need be
    # Copies: what autograd hands out may be its own, or one value stretched over all examples.
    a = np.zeros(targets.examples) if by_q is None else _copy_on_host(by_q)
    b = None if by_s is None or not core.uses_sum else _copy_on_host(by_s)
    g = np.zeros(targets.nonzeros) if by_o is None else _copy_on_host(by_o)
    grad_h = None
    of_h, of_handle = ctx.needs_input_grad[:2]
    if of_h:
        if journal.on_host:
            _, grad_h, out = journal.gradients.get((targets.examples, layer.dim))
        else:
            out = grad_h = layer._room(x)
        ticket = core.backpropagate(x, targets, a, b, g, out, ticket)
    if of_handle and journal.is_wanted(ctx):
        journal.add(Record(h, h._version, x, batch, targets, a, b, g, ticket))
    return grad_h, None, None


_differentiate_once = once(_differentiate)
