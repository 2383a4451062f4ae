"""A user's loss in one call, without a graph above h: autograd is asked for its derivatives by q, s and o only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ._graph import run_backward
from ._ready import send_down
from ._targets import Targets

if TYPE_CHECKING:
    from ._head import WideHead


def learn_own(
    head: WideHead,
    loss: Callable[[Tensor, Tensor, Tensor], Tensor],
    h: Tensor,
    x: Any,
    pattern: tuple[Targets | None, Any],
    lr: float,
) -> float:
    """What WideHead.learn does with a loss on the statistics. x is h as the layer takes it."""
    batch, targets = pattern
    layer, journal = head.layer, head._journal
    core = layer._core
    arrays, (q, s, o), (a, b, g) = journal.leaves.get(targets.examples, targets.nonzeros, core.uses_sum)  # type: ignore[misc]
    if journal.on_host:
        _, grad_h, out = journal.gradients.get((targets.examples, layer.dim))
    else:
        grad_h = out = layer._room(x)
    ticket = core.observe(x, targets, *arrays)
    with torch.enable_grad():
        if not journal.on_host:
            q, s, o = q.to(h.device), s.to(h.device), o.to(h.device)  # parts of the graph: the leaves stay where they are
        L = loss(q, s, o if batch is None else batch.shaped(o))
    if not isinstance(L, Tensor) or L.ndim != 0 or not L.requires_grad:
        raise ValueError("learn: the loss must be a scalar tensor that depends on q, s or o")
    value = L.item()
    if journal.on_host and L.dtype is torch.float64:
        run_backward((L, torch.from_numpy(np.array(1.0))))
    else:
        L.backward()
    if journal.handle.requires_grad:
        core.update(x, targets, a, b, g, lr, out, ticket)
    else:
        core.backpropagate(x, targets, a, b, g, out, ticket)
    if h.requires_grad:
        send_down(h, grad_h)
    return value
