"""WideHead.learn: loss, backward() and step in one call."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn
from torch_case import D, close, d, device, hidden, m, make, strange_loss  # noqa: F401: device is a fixture


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("loss", ["squared", "taylor"])
def test_learn_is_forward_backward_and_step(loss, reduction, weight_decay):
    one, other = (make(loss=loss, reduction=reduction, weight_decay=weight_decay) for _ in range(2))
    below = [nn.Linear(7, d, dtype=torch.float64) for _ in range(2)]
    below[1].load_state_dict(below[0].state_dict())
    for step in range(12):
        x, t = torch.randn(m, 7, dtype=torch.float64), torch.randint(0, D, (m, 2))
        L = one.learn(below[0](x), t, 0.05)
        expected = other(below[1](x), t)
        expected.backward()
        other.step(0.05)
        assert isinstance(L, float)
        close(L, expected.detach())
        close(below[0].weight.grad, below[1].weight.grad)  # added up over the steps in both
        close(one.weights(), other.weights(), 1e-11)
    assert one.layer.steps == other.layer.steps == 12
    h = hidden()
    one.requires_grad_(False)
    one.learn(h, t, 0.05)
    other(h.detach(), t)
    assert one.layer.steps == 12 and h.grad is not None
    with torch.no_grad():
        one.requires_grad_(True).learn(hidden(), t, 0.05)  # nothing is below
    assert one.layer.steps == 13


def test_learn_refuses_what_it_cannot_do():
    h, t = hidden(), torch.arange(m)
    for module in (make(reduction="none"), make(loss="own"), make(loss=lambda head, h, t: head.statistics(h, t)[0])):
        with pytest.raises(ValueError, match="learn: the head has no loss"):
            module.learn(h, t, 0.1)
    module = make()
    W = module.weights()
    module(h, t).backward()
    with pytest.raises(RuntimeError, match="learn: backward.. has recorded"):
        module.learn(h, t, 0.1)
    module.zero_grad()
    h.grad = None
    with pytest.raises(ValueError, match="eta = -0.25"):  # of a sum over four
        module.learn(h, t, -1.0)
    assert h.grad is None and (module.weights() == W).all() and module.layer.steps == 0
    module.learn(h, t, 0.1)
    assert module.layer.steps == 1


@pytest.mark.parametrize("uses_sum", [True, False])
@pytest.mark.parametrize("targets", ["one", "some", "csr"])
def test_learn_with_a_loss_of_ones_own_is_that_on_the_statistics(targets, uses_sum):
    """Also where the loss has parameters, does not use all, and W is not trained."""
    one, other = (make(uses_sum=uses_sum, weight_decay=0.1) for _ in range(2))
    below = [nn.Linear(7, d, dtype=torch.float64) for _ in range(2)]
    below[1].load_state_dict(below[0].state_dict())
    scales = [torch.ones((), dtype=torch.float64, requires_grad=True) for _ in range(2)]
    losses = [
        lambda q, s, o, scale: scale * (q.sum() + strange_loss(q, s, o)),
        lambda q, s, o, scale: scale * (q + 1).log().sum(),
        lambda q, s, o, scale: (o.sum() * scale).float(),
    ]
    for step in range(12):
        x = torch.randn(m, 7, dtype=torch.float64)
        t = torch.randint(0, D, (m,) if targets == "one" else (m, 3))
        if targets == "csr":
            parts = torch.arange(0, 3 * m + 1, 3), t.sort(1).values.reshape(-1), torch.ones(3 * m)
            t = torch.sparse_csr_tensor(*(each.cpu() for each in parts), (m, D), device="cpu")
        elif targets == "some":
            t[1, 2] = -1
        for head in (one, other):
            head.requires_grad_(step % 4 != 3)
        loss = losses[step % 3]
        L = one.learn(below[0](x), t, 0.01, lambda q, s, o: loss(q, s, o, scales[0]))
        expected = loss(*other.statistics(below[1](x), t), scales[1])
        expected.backward()
        other.step(0.01)
        assert isinstance(L, float)
        close(L, expected.detach())
        close(scales[0].grad, scales[1].grad)
        close(below[0].weight.grad, below[1].weight.grad)
        close(one.weights(), other.weights(), 1e-11)
    assert one.layer.steps == other.layer.steps == 9
    W = one.weights()
    for bad in (
        lambda q, s, o: q,
        lambda q, s, o: 1.0,
        lambda q, s, o: torch.ones(()),
        lambda q, s, o: q.sum().item(),
        lambda q, s, o: q.detach().sum(),
    ):
        with pytest.raises(ValueError, match="learn: the loss must be a scalar tensor"):
            one.learn(below[0](x), t, 0.01, bad)
    with pytest.raises(ArithmeticError, match="∂L/∂q = nan"):
        one.learn(below[0](x), t, 0.01, lambda q, s, o: (q * torch.nan).sum())
    assert (one.weights() == W).all() and one.layer.steps == 9
    with torch.no_grad():
        one.requires_grad_(True).learn(hidden(), t, 0.01, lambda q, s, o: q.sum())
    assert one.layer.steps == 10
