"""SGD for heads in the clothes of torch.optim: param_groups for LR schedulers, zero_grad, state_dict."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from ._head import WideHead


class SGD(torch.optim.Optimizer):
    """Exact SGD on every WideHead of a model: ``step`` calls ``head.step(lr)``, ``zero_grad`` forgets what was recorded.

    model is a WideHead, a module that contains some, or several of either. The other parameters are another optimizer's
    business, which may be given all of model.parameters(): of a head there is only an empty one among them.
    """

    def __init__(self, model: nn.Module | Iterable[nn.Module], lr: float) -> None:
        if not lr >= 0:
            raise ValueError(f"lr = {lr}, but it must not be negative")
        modules = [model] if isinstance(model, nn.Module) else list(model)
        heads = [each for module in modules for each in module.modules() if isinstance(each, WideHead)]
        if not heads:
            raise ValueError("SGD: there is no WideHead in the model")
        self._heads = {id(head._handle): head for head in heads}
        super().__init__([{"params": [head._handle for head in self._heads.values()]}], {"lr": lr})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for handle in group["params"]:
                self._heads[id(handle)].step(float(group["lr"]))
        return loss
