"""The ready-made losses, each a line or a few on top of the statistics (docs/losses.md). All return (m,), a loss an example."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from .. import losses

if TYPE_CHECKING:
    from ._head import WideHead


def squared_error(head: WideHead, h: Tensor, targets: Any) -> Tensor:
    """‖o − y‖² = q − 2 Σ y o_t + Σ y²."""
    q, s, o, batch = head._look(h, targets)
    y, _ = batch.merged()
    return q + batch.sum(y * (y - 2 * o))


def weighted_squared_error(
    head: WideHead, h: Tensor, targets: Any, unobserved: float = 0.05, observed: float = 1.0
) -> Tensor:
    """w₀ q + Σ w₁(o_t − y)² − w₀ o_t²."""
    q, s, o, batch = head._look(h, targets)
    y, first = batch.merged()
    return unobserved * q + batch.sum(first * (observed * (o - y) ** 2 - unobserved * o**2))


def spherical_softmax(head: WideHead, h: Tensor, targets: Any, epsilon: float = 1.0) -> Tensor:
    """Σ y (log Z − log (o_t + ε)²), Z = q + 2εs + Dε²; near its pole the second logarithm is a parabola."""
    q, s, o, batch = head._look(h, targets)
    delta, D = epsilon / 1000, head.layer.outputs
    Z = (q + 2 * epsilon * s + D * epsilon**2).clamp(min=D * delta**2)
    r = o + epsilon
    at_pole = r.abs() < delta
    log_square = torch.where(
        at_pole, 2 * math.log(delta) + (r / delta) ** 2 - 1, 2 * torch.where(at_pole, delta, r).abs().log()
    )
    y = batch.values()
    return batch.sum(y) * Z.log() - batch.sum(y * log_square)


def spherical_softmax_outside(head: WideHead, h: Tensor, targets: Any, epsilon: float = 0.01) -> Tensor:
    """Σ y (log Z − log (o_t² + ε)), Z = q + Dε."""
    q, s, o, batch = head._look(h, targets)
    y = batch.values()
    return batch.sum(y) * (q + head.layer.outputs * epsilon).log() - batch.sum(y * (o**2 + epsilon).log())


def taylor_softmax(head: WideHead, h: Tensor, targets: Any) -> Tensor:
    """Σ y (log Z − log (1 + o_t + o_t²/2)), Z = D + s + q/2."""
    q, s, o, batch = head._look(h, targets)
    y = batch.values()
    return batch.sum(y) * (head.layer.outputs + s + q / 2).log() - batch.sum(y * (1 + o + o**2 / 2).log())


def z_loss(
    head: WideHead, h: Tensor, targets: Any, scale: float = 0.05, shift: float = 40.0, sigma_min: float = 1e-6
) -> Tensor:
    """Σ y softplus(α(β − z))/α, z = (o_t − μ)/σ, μ = s/D, σ² = q/D − μ², σ at least sigma_min."""
    q, s, o, batch = head._look(h, targets)
    mu = s / head.layer.outputs
    variance = q / head.layer.outputs - mu**2
    varies = variance > sigma_min**2
    sigma = torch.where(varies, torch.where(varies, variance, 1.0).sqrt(), sigma_min)
    z = (o - batch.spread(mu)) / batch.spread(sigma)
    return batch.sum(batch.values() * softplus(scale * (shift - z), threshold=1e9)) / scale


def of(loss: losses.Loss) -> Callable[[WideHead, Tensor, Any], Tensor]:
    """The function of a loss of widehead.losses, with its parameters."""
    if isinstance(loss, losses.SquaredError):
        return squared_error
    if isinstance(loss, losses.WeightedSquaredError):
        return partial(weighted_squared_error, unobserved=loss.unobserved, observed=loss.observed)
    if isinstance(loss, losses.SphericalSoftmax):
        return partial(spherical_softmax, epsilon=loss.epsilon)
    if isinstance(loss, losses.SphericalSoftmaxOutside):
        return partial(spherical_softmax_outside, epsilon=loss.epsilon)
    if isinstance(loss, losses.TaylorSoftmax):
        return taylor_softmax
    if isinstance(loss, losses.ZLoss):
        return partial(z_loss, scale=loss.scale, shift=loss.shift, sigma_min=loss.sigma_min)
    raise ValueError("loss own: write it on statistics(), or pass a function (head, h, targets)")


def uses_sum(loss: losses.Loss | None) -> bool:
    return isinstance(loss, (losses.SphericalSoftmax, losses.TaylorSoftmax, losses.ZLoss))
