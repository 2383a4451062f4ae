"""Every head × loss × dtype × device beside the definition, with the bounds of the C++ tests (tests/loss_oracle.h). On a GPU h
and whatever is asked with it is there."""

import numpy as np
import oracle
import pytest
import widehead
from devices import DEVICES, here, there
from oracle import Minibatch, Oracle, SoftmaxOracle, near
from widehead import losses

LIMIT = {"float32": 1e-5, "float64": 1e-13}
CASES = {  # name: (loss, definition, are the targets' values weights, pole of o)
    "squared": (losses.SquaredError(), oracle.squared, False, None),
    "weighted": (losses.WeightedSquaredError(), oracle.weighted(0.05, 1), False, None),
    "weighted-0.3-2": (losses.WeightedSquaredError(0.3, 2), oracle.weighted(0.3, 2), False, None),
    "spherical": (losses.SphericalSoftmax(), oracle.spherical(1), True, -1),
    "spherical-1.3": (losses.SphericalSoftmax(epsilon=1.3), oracle.spherical(1.3), True, -1.3),
    "spherical-outside": (losses.SphericalSoftmaxOutside(), oracle.spherical_outside(0.01), True, None),
    "taylor": (losses.TaylorSoftmax(), oracle.taylor, True, None),
    "z": (losses.ZLoss(), oracle.z(0.05, 40), True, None),
    "z-1.5-0.4": (losses.ZLoss(scale=1.5, shift=0.4), oracle.z(1.5, 0.4), True, None),
}
D, d = 40, 8

pytestmark = pytest.mark.parametrize("device", DEVICES)
ONLY_ON_THE_CPU = "exists on the CPU only"


def make(head, loss, dtype, **options):
    return widehead.OutputLayer(outputs=D, dim=d, head=head, loss=loss, dtype=dtype, threads=1, **options)


def compare_steps(layer, truth, random, steps, *, positive, pole, weighted, nonzeros):
    limit = LIMIT[layer.dtype.name]
    for _ in range(steps):
        batch = Minibatch(random, D, d, 5, nonzeros, weighted=weighted, positive=positive)
        if pole is not None:
            batch.keep_away(truth.W, pole)
        L, grad_h = truth.evaluate(batch)
        lr = truth.rate(batch)
        h = there(layer.device, batch.h.astype(layer.dtype))
        for loss, gradient in (
            layer.evaluate(h, batch.targets(layer.dtype), weights=batch.weights),
            layer.step(h, batch.targets(layer.dtype), lr=lr, weights=batch.weights),
        ):
            near(loss, L, limit, truth.loss_scale)
            near(here(gradient), grad_h, limit, truth.grad_scale)
            assert type(gradient) is type(h) and gradient.dtype == h.dtype and gradient.shape == h.shape
        truth.step(batch, lr)
    near(layer.weights(), truth.W, limit, truth.scale)
    near(layer.gram(), truth.W.T @ truth.W, limit, truth.scale**2)
    near(layer.sum_of_rows(), truth.W.sum(0), limit, np.sqrt(D) * truth.scale)
    assert layer.steps == steps


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("head", ["windowed", "factored", "dense", "reference"])
def test_step_is_that_of_the_definition(head, case, dtype, device):
    loss, definition, positive, pole = CASES[case]
    if head == "reference" and (device != "cpu" or dtype == "float32" or case != "squared"):
        with pytest.raises(ValueError, match=ONLY_ON_THE_CPU if device != "cpu" else "reference"):
            make(head, loss, dtype, device=device)
        return
    random = np.random.default_rng([*head.encode(), *case.encode()])
    for weight_decay in (0.0, 0.01):
        for init in ("normal", random.standard_normal((D, d)) / 8):
            for weighted, nonzeros in ((False, 1), (True, 7)):
                if head == "reference" and weight_decay:
                    continue
                window = {"window": 12} if head == "windowed" else {}
                layer = make(head, loss, dtype, init=init, weight_decay=weight_decay, seed=3, device=device, **window)
                truth = Oracle(layer.weights(), definition, weight_decay)
                if not isinstance(init, str):
                    near(truth.W, init, 1e-7 if dtype == "float32" else 0, np.linalg.norm(init))
                compare_steps(
                    layer, truth, random, 12, positive=positive, pole=pole, weighted=weighted, nonzeros=nonzeros
                )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("head", ["softmax", "hierarchical", "sampled"])
def test_softmax_heads_are_those_of_the_definition(head, dtype, device):
    if head == "sampled" and device != "cpu":
        with pytest.raises(ValueError, match=ONLY_ON_THE_CPU):
            make(head, "squared", dtype, device=device)
        return
    random = np.random.default_rng(5)
    limit = (4 * 11 + d + 4) * np.finfo(dtype).eps  # 4 ε a step, and a product of d: tests/cross_entropy_heads.h
    options = {"softmax": {}, "hierarchical": {"classes": 7}, "sampled": {"samples": 8000}}[head]  # a sample of all
    for weight_decay in (0.0, 0.01) if head == "softmax" else (0.0,):
        W0 = random.standard_normal((D, d)) / 8
        layer = make(head, "squared", dtype, init=W0, weight_decay=weight_decay, device=device, **options)
        truth = SoftmaxOracle(layer.weights(), weight_decay, classes=options.get("classes", 0))
        for _ in range(10):
            batch = Minibatch(random, D, d, 5, 3, weighted=True, positive=True)
            h, targets = there(device, batch.h.astype(dtype)), batch.targets(dtype)
            L, grad_h = truth.evaluate(batch)
            scale = truth.mass * (1 + truth.largest * np.linalg.norm(batch.h))
            for loss, gradient in (
                layer.evaluate(h, targets, batch.weights),
                layer.step(h, targets, 0.05, batch.weights),
            ):
                near(loss, L, limit, scale)
                near(here(gradient), grad_h, limit, scale * truth.largest)
            truth.step(0.05)
        near(layer.weights(), truth.W, limit, truth.largest)
        rows = [3, 4, 5, 39, 0]
        log_p = here(layer.log_prob(h, (np.arange(6) * 5, np.tile(rows, 5).astype(np.int32), None))).reshape(5, 5)
        for j in range(5):
            near(log_p[j], truth.log_p(batch.h[j])[rows], limit, 10 + truth.largest * np.linalg.norm(batch.h[j]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("head", ["windowed", "factored", "dense"])
def test_a_step_in_parts_is_the_step(head, dtype, device):
    """A loss computed here, from the statistics, takes the same steps as the layer's own."""
    random = np.random.default_rng(7)
    limit = LIMIT[dtype]
    whole = make(head, "taylor", dtype, init="normal", weight_decay=0.01, device=device)
    parts = make(head, losses.Own(), dtype, init="normal", weight_decay=0.01, device=device)
    for _ in range(15):
        batch = Minibatch(random, D, d, 5, 4, positive=True)
        h, targets = batch.h.astype(dtype), batch.targets(dtype)
        x = there(device, h)
        q, s, o = (here(each) for each in parts.statistics(x, targets))
        O = h.astype(np.float64) @ whole.weights().T.astype(np.float64)
        near(q, (O**2).sum(1), limit, (O**2).sum())
        near(s, O.sum(1), limit, np.sqrt(D) * np.linalg.norm(O))
        near(o, O[np.arange(5).repeat(4), batch.indices], limit, np.linalg.norm(O))
        Z, rows, y = D + s + q / 2, np.arange(5).repeat(4), batch.values
        mass = np.bincount(rows, y, 5)
        a, b, g = mass / (2 * Z), mass / Z, -y * (1 + o) / (1 + o + o**2 / 2)
        numerator = 1 + o + o**2 / 2
        L, gradient = whole.step(x, targets, 0.02)
        gradient, a, b, g = here(gradient), there(device, a), there(device, b), there(device, g)
        near((y * np.log(Z[rows] / numerator)).sum(), L, limit, abs(L))
        near(here(parts.backward(x, targets, a, b, g)), gradient, limit, np.linalg.norm(gradient) + 1)
        near(here(parts.update(x, targets, a, b, g, 0.02)), gradient, limit, np.linalg.norm(gradient) + 1)
        near(parts.weights(), whole.weights(), limit, np.linalg.norm(whole.weights()))
    assert parts.steps == whole.steps == 15


def test_scores_top_k_and_probabilities_are_those_of_the_weights(device):
    random = np.random.default_rng(8)
    layer = make("windowed", losses.SphericalSoftmax(0.3), "float64", init="normal", device=device)
    for _ in range(20):
        batch = Minibatch(random, D, d, 5, 2, positive=True)
        layer.step(batch.h, batch.targets(np.float64), lr=0.01)
    W, h = layer.weights(), batch.h
    rows = np.array([7, 8, 9, 3, 3, 39])
    near(layer.weights(rows), W[rows], 1e-15 if device == "cpu" else 1e-14, 1)  # of a product of another shape there
    assert layer.weights([]).shape == (0, d)
    O = h @ W.T
    x = there(device, h)
    near(here(layer.scores(x, rows)), O[:, rows], 1e-14, np.linalg.norm(O))
    outputs, scores = (here(each) for each in layer.top_k(x, 6))
    assert (outputs == np.argsort(-O, 1)[:, :6]).all()
    near(scores, -np.sort(-O, 1)[:, :6], 1e-14, np.linalg.norm(O))
    p = (O + 0.3) ** 2 / ((O + 0.3) ** 2).sum(1, keepdims=True)
    one_each = np.array([1, 2, 3, 4, 5])
    near(here(layer.log_prob(x, one_each)), np.log(p[np.arange(5), one_each]), 1e-12, 10)
    near(layer.rate_for(x, one_each, 0.5), 0.25 / np.linalg.norm(h, 2) ** 2, 1e-6, 1)
