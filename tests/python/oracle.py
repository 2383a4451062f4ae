"""The definition: all outputs, the whole gradient by them, W itself, in float64. It shares nothing with the library.

Each loss gives, for one example with outputs o (D,) and targets y = {output: value}, the loss L, its gradient r = ∂L/∂o (D,),
and the magnitudes |a|, |b|, Σ|g| of its derivatives by ‖o‖², Σo and o_t, which say what roundings are relative to.
"""

from __future__ import annotations

import numpy as np


def dense(y, D):
    full = np.zeros(D)
    for output, value in y.items():
        full[output] += value
    return full


def squared(o, y):
    residual = o - dense(y, len(o))
    return residual @ residual, 2 * residual, (1, 0, 2 * sum(abs(v) for v in y.values()))


def weighted(unobserved, observed):
    def loss(o, y):
        w = np.full(len(o), unobserved)
        w[list(y)] = observed
        residual = o - dense(y, len(o))
        g = sum(abs(2 * (observed * (o[t] - v) - unobserved * o[t])) for t, v in y.items())
        return w @ residual**2, 2 * w * residual, (unobserved, 0, g)

    return loss


def softmax_like(numerator, slope, parts):
    """p(c) = f(o_c) / Σ f(oᵢ); `slope` is f′, parts(Z) are ∂log Z by q and by s."""

    def loss(o, y):
        f, df = numerator(o), slope(o)
        Z, mass = f.sum(), sum(y.values())
        L = sum(v * (np.log(Z) - np.log(f[t])) for t, v in y.items())
        r = mass * df / Z
        g = 0.0
        for t, v in y.items():
            r[t] -= v * df[t] / f[t]
            g += abs(v * df[t] / f[t])
        a, b = parts(Z)
        return L, r, (mass * a, mass * b, g)

    return loss


def spherical(e):
    return softmax_like(lambda o: (o + e) ** 2, lambda o: 2 * (o + e), lambda Z: (1 / Z, 2 * e / Z))


def spherical_outside(e):
    return softmax_like(lambda o: o**2 + e, lambda o: 2 * o, lambda Z: (1 / Z, 0))


taylor = softmax_like(lambda o: 1 + o + o**2 / 2, lambda o: 1 + o, lambda Z: (1 / (2 * Z), 1 / Z))


def z(scale, shift):
    def loss(o, y):
        D, mu, sigma = len(o), o.mean(), o.std()
        L, r, a, b, g = 0.0, np.zeros(D), 0.0, 0.0, 0.0
        for t, v in y.items():
            score = (o[t] - mu) / sigma
            L += v * np.logaddexp(0, scale * (shift - score)) / scale
            by_score = -v / (1 + np.exp(-scale * (shift - score)))
            by_o = -1 / (D * sigma) - score * (o - mu) / (D * sigma**2)
            by_o[t] += 1 / sigma
            r += by_score * by_o
            a += abs(by_score * score) / (2 * sigma**2 * D)
            b += abs(by_score) * (1 / (sigma * D) + abs(score * mu) / (sigma**2 * D))
            g += abs(by_score) / sigma
        return L, r, (a, b, g)

    return loss


class Minibatch:
    """Examples in float64 whose every value is a float32; K targets each, now and then one twice."""

    def __init__(self, random, outputs, dim, batch, nonzeros, *, weighted=False, positive=False):
        single = lambda x: np.asarray(x, np.float32).astype(np.float64)
        self.outputs = outputs
        self.h = single(random.standard_normal((batch, dim)))
        self.indptr = np.arange(batch + 1) * nonzeros
        self.indices = random.integers(0, outputs, batch * nonzeros).astype(np.int32)
        for e in range(1, len(self.indices)):
            if e % nonzeros and random.integers(3) == 0:
                self.indices[e] = self.indices[e - 1]
        values = random.standard_normal(batch * nonzeros)
        self.values = single(0.2 + abs(values) if positive else values)
        self.weights = single(random.uniform(0.1, 3, batch)) if weighted else None
        if weighted and batch > 1:
            self.weights[1] = 0

    def targets_of(self, j):
        y = {}
        for e in range(self.indptr[j], self.indptr[j + 1]):
            y[int(self.indices[e])] = y.get(int(self.indices[e]), 0) + self.values[e]
        return y

    def weight(self, j):
        return 1 if self.weights is None else self.weights[j]

    def targets(self, dtype):
        return self.indptr, self.indices, self.values.astype(dtype)

    def keep_away(self, W, pole):
        """No target within half of the pole, where a rounding of o is not small."""
        for j, h in enumerate(self.h):
            o = W @ h
            for e in range(self.indptr[j], self.indptr[j + 1]):
                while abs(o[self.indices[e]] - pole) < abs(pole) / 2:
                    self.indices[e] = (self.indices[e] + 1) % self.outputs


class Oracle:
    """W itself, and the step of any loss above."""

    def __init__(self, W, loss, weight_decay=0.0):
        self.W = np.array(W, np.float64)
        self.scale = np.linalg.norm(self.W)  # the largest ‖W‖ so far, or step of it
        self.loss, self.weight_decay = loss, weight_decay

    def evaluate(self, batch):
        D, m = len(self.W), len(batch.h)
        self.R = np.zeros((D, m))
        total, self.loss_scale, squares, self.step_scale, self.largest_a = 0.0, 0.0, 0.0, 0.0, 1e-300
        for j, h in enumerate(batch.h):
            L, r, (a, b, g) = self.loss(self.W @ h, batch.targets_of(j))
            w, size = batch.weight(j), np.linalg.norm(h)
            total += w * L
            self.R[:, j] = w * r
            o_size, root = self.scale * size, np.sqrt(D)
            self.loss_scale += w * (abs(L) + a * o_size**2 + b * root * o_size + g * o_size)
            r_size = 2 * a * o_size + b * root + g
            squares += (w * r_size) ** 2
            self.step_scale += w * r_size * size
            self.largest_a = max(self.largest_a, w * a)
        self.grad_scale = self.scale * np.sqrt(squares)
        return total, (self.W.T @ self.R).T

    def rate(self, batch, lambda1=0.1):
        """A float32 at which a step contracts W by lambda1 at most and moves no output by more than 1/2."""
        move = abs(self.R @ (batch.h @ batch.h.T)).max()
        return float(np.float32(min(1, lambda1 / (2 * self.largest_a * (batch.h**2).sum()), 0.5 / max(move, 1e-300))))

    def step(self, batch, lr):
        self.W = (1 - lr * self.weight_decay) * self.W - lr * self.R @ batch.h
        self.scale = max(self.scale, np.linalg.norm(self.W), lr * self.step_scale)


class SoftmaxOracle:
    """The cross-entropy of the full softmax or, with classes, of the two-level one."""

    def __init__(self, W, weight_decay=0.0, classes=0):
        self.W, self.weight_decay = np.array(W, np.float64), weight_decay
        self.blocks = np.array_split(np.arange(len(W)), classes) if classes else None
        self.A = np.zeros((classes, self.W.shape[1]))
        self.largest = np.linalg.norm(self.W)

    @staticmethod
    def _level(rows, h, y):
        """(L, by the rows, by h) of one softmax."""
        logits = rows @ h
        log_p = logits - np.logaddexp.reduce(logits)
        r = y.sum() * np.exp(log_p) - y
        return -(y @ log_p), np.outer(r, h), rows.T @ r

    def evaluate(self, batch):
        total, grad_h = 0.0, np.zeros_like(batch.h)
        self.grad_W, self.grad_A, self.mass = np.zeros_like(self.W), np.zeros_like(self.A), 0.0
        for j, h in enumerate(batch.h):
            y, w = dense(batch.targets_of(j), len(self.W)), batch.weight(j)
            self.mass += w * abs(y).sum()
            if self.blocks is None:
                parts = [(self._level(self.W, h, y), self.grad_W, slice(None))]
            else:
                parts = [(self._level(self.W[b], h, y[b]), self.grad_W, b) for b in self.blocks if y[b].any()]
                of_classes = np.array([y[b].sum() for b in self.blocks])
                parts.append((self._level(self.A, h, of_classes), self.grad_A, slice(None)))
            for (L, by_rows, by_h), grad, where in parts:
                total += w * L
                grad[where] += w * by_rows
                grad_h[j] += w * by_h
        return total, grad_h

    def step(self, lr):
        self.W = (1 - lr * self.weight_decay) * self.W - lr * self.grad_W
        self.A = self.A - lr * self.grad_A
        self.largest = max(self.largest, np.linalg.norm(self.W))

    def log_p(self, h):
        of = lambda logits: logits - np.logaddexp.reduce(logits)
        if self.blocks is None:
            return of(self.W @ h)
        classes = of(self.A @ h)
        return np.concatenate([classes[c] + of(self.W[b] @ h) for c, b in enumerate(self.blocks)])


def near(value, truth, limit, scale):
    """Normwise: ‖value − truth‖ ≤ limit · scale."""
    error = np.linalg.norm(np.asarray(value, np.float64) - truth)
    assert error <= limit * scale, f"off by {error / scale:.3g}, allowed is {limit:.3g}"
