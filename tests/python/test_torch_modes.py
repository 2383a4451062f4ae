"""Heads where autograd is in an unusual mode: what is made there must be good elsewhere, too."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.utils.checkpoint

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


WAYS = {
    "a loss": lambda head, h, t: head(h, t),
    "a loss with its graph": lambda head, h, t: 1 * head(h, t),
    "statistics": lambda head, h, t: squared_error(head, h, t).mean(),
}


def cubed(x):
    """h, of a version that is not 0."""
    return (x**3).add_(1)


def has_stepped_as_ever(head, x):
    truth, other = make(), x.detach().requires_grad_()
    h = cubed(other)
    squared_error(truth, h, torch.arange(m)).mean().backward()
    truth.step(0.1)
    close(x.grad, other.grad)
    close(head.weights(), truth.weights())


@pytest.mark.parametrize("way", WAYS)
def test_hooks_for_saved_tensors(way):
    """They may hand out copies, and nobody may hold h itself any more."""
    head, x, t = make(), hidden(), torch.arange(m)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.detach().clone(), lambda saved: saved.clone()):
        loss = WAYS[way](head, cubed(x), t)
    others = [torch.full((m, d), torch.nan, dtype=torch.float64) for _ in range(50)]  # where h was
    loss.backward()
    head.step(0.1)
    has_stepped_as_ever(head, x)
    assert len(others) == 50


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_head_in_a_checkpoint(way, reentrant):
    head, x, t = make(), hidden(), torch.arange(m)
    checkpoint = torch.utils.checkpoint.checkpoint
    loss = checkpoint(lambda x: WAYS[way](head, cubed(x), t), x, use_reentrant=reentrant)
    loss.backward()
    head.step(0.1)
    has_stepped_as_ever(head, x)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("way", WAYS)
def test_a_second_derivative_is_an_error_and_not_a_part_of_it(way):
    """Also where what comes down to the head is a constant."""
    head, x, t = make(), hidden(), torch.arange(m)
    h = x * x
    (g,) = torch.autograd.grad(WAYS[way](head, h, t), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        torch.autograd.grad(g.sum(), x)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        torch.autograd.functional.hessian(lambda h: WAYS[way](head, h, t), x)
    other = x.detach().requires_grad_()
    WAYS[way](head, other * other, t).backward()
    close(g.detach(), other.grad)
    head.zero_grad()
    leaf = hidden()
    WAYS[way](head, leaf, t).backward(create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        leaf.grad.sum().backward()
    leaf.grad = None


@pytest.mark.parametrize("leaf", [torch.Tensor.requires_grad_, torch.nn.Parameter])
def test_a_loss_whose_h_has_other_memory_has_no_gradients_of_that(leaf):
    head, t = make(), torch.arange(m)
    h = leaf(hidden().detach())
    if not h.is_cpu:
        pytest.skip("on a GPU a loss has its graph from the start")
    loss = head(h, t)
    h.data = torch.zeros_like(h)
    with pytest.raises(RuntimeError, match="other memory"):
        torch.autograd.grad(loss, h, retain_graph=True)
    made = head(h, t)
    assert made.requires_grad  # a graph from before the change has h as it was
    h.data = torch.ones_like(h)
    (first,) = torch.autograd.grad(made, h, retain_graph=True)
    (second,) = torch.autograd.grad(made, h)
    close(first, second)


def test_a_leaf_that_is_frozen_before_backward_has_no_gradient():
    head, h = make(), hidden()
    loss = head(h, torch.arange(m))
    h.requires_grad_(False)
    loss.backward()
    assert h.grad is None and head._journal.records()


@pytest.mark.parametrize("mode", ["all", "any"])
@pytest.mark.parametrize("act", ["backward", "graph", "learn"])
@pytest.mark.parametrize("is_leaf", [True, False])
def test_hooks_for_several_gradients(is_leaf, act, mode):
    """They ask the engine which functions it will run, and h's is where it is told to start."""
    head, x, t, calls = make(), hidden(), torch.arange(m), []
    h = x if is_leaf else 2 * x
    unused = hidden()
    of = (h,) if is_leaf else (x, h, unused)
    torch.autograd.graph.register_multi_grad_hook(of, calls.append, mode=mode)
    if act == "learn":
        head.learn(h, t, 0.1)
    else:
        loss = head(h, t)
        (loss if act == "backward" else 1 * loss).backward()
    assert len(calls) == 1
    if mode == "all":
        assert [each is not None for each in calls[0]] == [each is not unused for each in of]


@pytest.mark.parametrize("change", [lambda h: h.detach_(), lambda h: h.detach_().requires_grad_()])
def test_an_h_that_was_detached_in_place_is_not_the_end_of_the_gradient(change):
    """With a graph from the start the layers below have theirs; else it is an error."""
    head, x, t = make(), hidden(), torch.arange(m)
    with_graph = []
    for touch in (True, False):
        h = 2 * x
        loss = head(h, t)
        if touch or not h.is_cpu:
            loss.grad_fn
        change(h)
        if touch or not h.is_cpu:
            x.grad = None
            loss.backward()
            with_graph.append(x.grad)
            assert h.grad is None
        else:
            for act in (loss.backward, (2 * loss).backward):
                with pytest.raises(RuntimeError, match="detached in place"):
                    act()
            assert h.grad is None
        head.zero_grad()
    other = x.detach().requires_grad_()
    squared_error(head, 2 * other, t).mean().backward()
    close(with_graph[0], other.grad)
