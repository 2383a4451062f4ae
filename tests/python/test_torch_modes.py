"""Heads where autograd is in an unusual mode: what is made there must be good elsewhere, too."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_case import D, close, d, device, hidden, m, make  # noqa: F401: device is a fixture
from widehead.torch import _ready, squared_error


def ask_statistics(head, h, t):
    return head.statistics(h, t)[0].sum()


def ask_learn(head, h, t):
    return head.learn(h, t, 0.0)


def ask_own(head, h, t):
    with pytest.raises(ValueError, match="depends on q, s or o"):  # nothing has a graph there
        head.learn(h, t, 0.0, lambda q, s, o: q.sum())


@pytest.mark.parametrize("ask", [ask_statistics, ask_learn, ask_own])
def test_tensors_of_inference_mode_do_not_come_up_in_training(ask):
    """Tensors are made in advance: those must not be inference tensors, which autograd refuses."""
    head, truth, t = make(), make(), torch.arange(m)
    with torch.inference_mode():
        for _ in range(3):
            ask(head, hidden().detach(), t)
    for step in range(6):
        h = hidden()
        other = h.detach().requires_grad_()
        q, s, o = truth.statistics(other, t)
        (q * q - o * s).sum().backward()
        truth.step(0.001)
        if step % 2:
            head.learn(h, t, 0.001, lambda q, s, o: (q * q - o * s).sum())
        else:
            q, s, o = head.statistics(h, t)
            (q * q - o * s).sum().backward()
            head.step(0.001)
        close(h.grad, other.grad)
        h.grad.mul_(2)  # as optimizers do
        close(head.weights(), truth.weights())


def test_a_loss_whose_graph_is_first_asked_for_in_inference_mode():
    head, h, t = make(), hidden(), torch.arange(m)
    if not h.is_cpu:
        pytest.skip("on a GPU a loss has its graph from the start")
    for _ in range(2 * _ready._MANY):  # also where that is where losses are made in advance
        with torch.inference_mode():
            with torch.enable_grad():
                head(h, t)
        loss = head(h, t)
        with torch.inference_mode():
            total = torch.zeros((), dtype=torch.float64)
            total += loss
        h.grad = None
        (2 * loss).backward()
        head.zero_grad()
    other = h.detach().requires_grad_()
    (2 * squared_error(head, other, t).mean()).backward()
    close(h.grad, other.grad)
