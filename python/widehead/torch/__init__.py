"""WideHead: the last layer of a PyTorch model, with any number of outputs.

    head = WideHead(dim=300, outputs=1_000_000)
    q, s, o = head.statistics(h, targets)    # ‖o‖², Σo and the outputs at the targets: differentiable tensors
    loss = (q - 2 * o + 1).mean()            # any loss of them; here the squared error for targets of 1
    loss.backward()                          # ∂L/∂h goes on to the layers below
    head.step(lr)                            # the exact step of W, O(d²)

W is no tensor: it is never formed, and neither is its gradient. What backward() leaves behind are the derivatives by q, s and
o, from which ``step`` takes the very step that SGD on an explicit W would take.
"""

from ._head import WideHead
from ._losses import (
    spherical_softmax,
    spherical_softmax_outside,
    squared_error,
    taylor_softmax,
    weighted_squared_error,
    z_loss,
)
from ._optim import SGD

__all__ = [
    "SGD",
    "WideHead",
    "spherical_softmax",
    "spherical_softmax_outside",
    "squared_error",
    "taylor_softmax",
    "weighted_squared_error",
    "z_loss",
]
