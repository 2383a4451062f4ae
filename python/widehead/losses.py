"""The spherical family of losses: all that depend on the outputs o = Wh through ‖o‖², Σo and the outputs at the targets.

Each has a name, which stands for it with its default parameters. Formulas and advice: docs/losses.md.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Union

__all__ = [
    "Loss",
    "Own",
    "SphericalSoftmax",
    "SphericalSoftmaxOutside",
    "SquaredError",
    "TaylorSoftmax",
    "WeightedSquaredError",
    "ZLoss",
    "make",
]


@dataclasses.dataclass(frozen=True)
class SquaredError:
    """L = ‖o − y‖²."""

    name: ClassVar[str] = "squared"


@dataclasses.dataclass(frozen=True)
class WeightedSquaredError:
    """L = w₀ Σ oᵢ² over the outputs that are no targets + w₁ Σ (o_t − y)²: for implicit feedback."""

    unobserved: float = 0.05
    observed: float = 1.0
    name: ClassVar[str] = "weighted"


@dataclasses.dataclass(frozen=True)
class SphericalSoftmax:
    """log-spherical softmax: p(c) = (o_c + ε)² / Σ (oᵢ + ε)²."""

    epsilon: float = 1.0
    name: ClassVar[str] = "spherical"


@dataclasses.dataclass(frozen=True)
class SphericalSoftmaxOutside:
    """log-spherical softmax: p(c) = (o_c² + ε) / Σ (oᵢ² + ε). W = 0 is a stationary point: start from init="normal"."""

    epsilon: float = 0.01
    name: ClassVar[str] = "spherical-outside"


@dataclasses.dataclass(frozen=True)
class TaylorSoftmax:
    """log-Taylor softmax: p(c) = (1 + o_c + o_c²/2) / Σ (1 + oᵢ + oᵢ²/2)."""

    name: ClassVar[str] = "taylor"


@dataclasses.dataclass(frozen=True)
class ZLoss:
    """L = Σ y softplus(α(β − z))/α, z = (o_t − μ)/σ, with μ and σ those of the example's outputs."""

    scale: float = 0.05
    shift: float = 40.0
    sigma_min: float = 1e-6
    name: ClassVar[str] = "z"


@dataclasses.dataclass(frozen=True)
class Own:
    """A loss that is computed outside the layer: by ``statistics`` and ``update``, or by ``widehead.torch.WideHead``.

    Without ``uses_sum`` there is no Σo, and a step is a little cheaper. An inner loss is what ``step`` and ``evaluate`` take.
    """

    uses_sum: bool = True
    inner: Loss | None = None
    name: ClassVar[str] = "own"


Loss = Union[SquaredError, WeightedSquaredError, SphericalSoftmax, SphericalSoftmaxOutside, TaylorSoftmax, ZLoss, Own]

_CLASSES = (SquaredError, WeightedSquaredError, SphericalSoftmax, SphericalSoftmaxOutside, TaylorSoftmax, ZLoss, Own)


def make(loss: str | Loss) -> Loss:
    """The loss of that name with its default parameters; a loss is returned as it is."""
    if isinstance(loss, _CLASSES):
        return loss
    for each in _CLASSES:
        if each.name == loss:
            return each()
    raise ValueError(f"loss {loss!r} is unknown; there are: {', '.join(each.name for each in _CLASSES)}")


def to_dict(loss: Loss) -> dict[str, object]:
    """{"name": …, "parameter": value, …}, as it is stored."""
    if isinstance(loss, Own):
        inner = {} if loss.inner is None else {"inner": to_dict(loss.inner)}
        return {"name": loss.name, "uses_sum": loss.uses_sum, **inner}
    return {"name": loss.name, **dataclasses.asdict(loss)}


def from_dict(stored: dict[str, Any]) -> Loss:
    parameters = dict(stored)
    if "inner" in parameters:
        parameters["inner"] = from_dict(parameters["inner"])
    kind = type(make(parameters.pop("name")))
    return kind(**parameters)
