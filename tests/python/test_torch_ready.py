"""A ready-made loss before and after it has a graph: whoever asks for what, gradients and steps are the same."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_case import D, close, d, device, hidden, m, make  # noqa: F401: device is a fixture
from widehead import _core
from widehead.torch import _ready, _stock, squared_error

T = torch.Tensor


@pytest.fixture(autouse=True)
def on_the_host(device):  # noqa: F811
    if device != "cpu":
        pytest.skip("on a GPU a loss has its graph from the start")


class Combined(torch.autograd.Function):
    """Of a user's, which PyTorch calls without asking the classes of its arguments."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, by):
        x, y = ctx.saved_tensors
        return by * y, by * x


def of_others(loss, h):
    """Something differentiable that is not the loss."""
    return h.sum() * 0 + 3


# What is done with a loss, and by how much that multiplies it.
WAYS = {
    "backward": (lambda loss, h: loss.backward(), 1),
    "gradient": (lambda loss, h: loss.backward(torch.tensor(-2.0, dtype=torch.float64)), -2),
    "retained": (lambda loss, h: (loss.backward(retain_graph=True), loss.backward()), 2),
    "autograd.backward": (lambda loss, h: torch.autograd.backward(loss), 1),
    "autograd.backward of two": (lambda loss, h: torch.autograd.backward([loss, 2 * loss]), 3),
    "Tensor.backward": (lambda loss, h: T.backward(loss), 1),
    "times": (lambda loss, h: (2 * loss).backward(), 2),
    "by name": (lambda loss, h: torch.add(input=loss, other=loss).backward(), 2),
    "in a list": (lambda loss, h: torch.stack([loss, loss, loss]).sum().backward(), 3),
    "in place": (lambda loss, h: loss.mul_(5).backward(), 5),
    "in place before": (lambda loss, h: (loss.mul_(5), loss.backward()), 5),
    "indexed": (lambda loss, h: loss[None][0].backward(), 1),
    "seen without gradients": (lambda loss, h: (not_required(loss), loss.backward()), 1),
    "hooked": (lambda loss, h: (loss.register_hook(lambda by: 4 * by), loss.backward()), 4),
    "a function of a user's": (lambda loss, h: Combined.apply(loss, of_others(loss, h)).backward(), 3),
    "that twice": (lambda loss, h: twice(Combined.apply(loss, of_others(loss, h))), 6),
}


def not_required(loss):
    with torch.no_grad():
        assert not (2 * loss).requires_grad
    with torch.inference_mode():
        assert not (2 * loss).requires_grad


def twice(loss):
    loss.backward(retain_graph=True)
    loss.backward()


@pytest.mark.parametrize("below", ["a leaf", "a parameter", "a layer"])
@pytest.mark.parametrize("way", WAYS)
def test_whatever_is_done_with_a_loss_is_done_to_the_same_graph(way, below):
    targets = torch.randint(0, D, (m,))
    start = hidden().detach()
    found = []
    for head in (make(reduction="sum"), make(reduction="mean"), None):
        leaf = torch.nn.Parameter(start.clone()) if below == "a parameter" else start.clone().requires_grad_()
        h = 2 * leaf if below == "a layer" else leaf
        act, factor = WAYS[way]
        if head is not None:
            loss = head(h, targets)
            assert type(loss) is _ready.PendingLoss
            act(loss, h)
            scale = m if head.reduction == "mean" else 1
            head.step(0.01 * scale)
        else:
            head, scale = make(), 1
            (factor * squared_error(head, h, targets).sum()).backward()
            head.step(0.01)
        found.append((leaf.grad * scale, head.weights()))
    for gradient, W in found[:2]:
        close(gradient, found[2][0])
        close(W, found[2][1])


def test_what_a_loss_says_of_itself():
    head, h = make(), hidden()
    for ask in (
        lambda loss: loss.requires_grad and not loss.is_leaf,
        lambda loss: "LayerLoss" in type(loss.grad_fn).__name__,
        lambda loss: loss.grad_fn.next_functions[0][0].variable is h,
        lambda loss: "grad_fn" in repr(loss),
        lambda loss: torch.is_tensor(loss) and loss.shape == () and loss.dtype == torch.float64,
        lambda loss: torch.autograd.graph.get_gradient_edge(loss).node is loss.grad_fn,
    ):
        loss = head(h, torch.arange(m))
        assert ask(loss)
        assert loss._cell.graph is not None
    with pytest.raises(RuntimeError, match="requires grad"):
        head(h, torch.arange(m)).numpy()
    with pytest.raises(RuntimeError, match="only supports|graph leaves"):
        copy.deepcopy(head(h, torch.arange(m)))


def test_gradcheck_of_a_ready_made_loss():
    head = make(loss="spherical")
    assert torch.autograd.gradcheck(lambda h: head(h, torch.arange(m)), hidden())


def test_a_look_makes_no_graph():
    head, h = make(), hidden()
    loss = head(h, torch.arange(m))
    value = loss.item()
    assert float(loss.detach()) == value and f"{loss:.3f}" == f"{value:.3f}" and type(loss.detach()) is T
    assert loss and loss.tolist() == value and not loss.isnan() and not loss.isinf() and torch.isfinite(loss)
    assert loss._cell.graph is None
    loss.backward()
    assert loss.item() == value and loss._cell.graph is None
    made = head(h, torch.arange(m))
    assert made.requires_grad and f"{made:.3f}" == f"{value:.3f}"


def test_a_loss_that_was_used_up_is_a_number_with_a_past():
    head, h = make(), hidden()
    total = 0
    for _ in range(3):
        loss = head(h, torch.arange(m))
        loss.backward()
        total += loss  # as loops do
        head.zero_grad()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            (2 * loss).backward()
    close(total.detach(), 3 * loss.detach())
    assert loss.requires_grad and not head._journal.records()
    with pytest.raises(RuntimeError, match="second time"):
        total.backward()
    after = Combined.apply(head(h, torch.arange(m)), torch.ones(()))
    loss = head(h, torch.arange(m))
    mixed = Combined.apply(loss, torch.ones(()))
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        mixed.backward()
    after.backward()


def test_inputs_and_autograd_grad_leave_the_rest_alone():
    head, x = make(), hidden()
    h = 2 * x
    head(h, torch.arange(m)).backward(inputs=[x])
    assert x.grad is not None and not head._journal.records()
    (by_h,) = torch.autograd.grad(head(h, torch.arange(m)), h)
    close(2 * by_h, x.grad)
    with pytest.raises(RuntimeError, match="not have been used"):
        torch.autograd.grad(Combined.apply(head(h, torch.arange(m)), torch.ones(())), h)
    assert not head._journal.records()


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("seen", [True, False])
def test_leaves_have_their_hooks_and_what_they_had(monkeypatch, seen, learns):
    """Also where PyTorch does not say whether there are hooks."""
    if not seen:
        monkeypatch.setattr(_ready, "_HOOKS_ARE_SEEN", False)
    targets = torch.arange(m)

    def go(h):
        head = make()
        if learns:
            head.learn(h, targets, 0.1)
        else:
            head(h, targets).backward()
        return h.grad

    h = hidden()
    plain = go(h).clone()
    close(go(h), 2 * plain)  # what was there
    for make_leaf in (lambda: h.detach().requires_grad_(), lambda: torch.nn.Parameter(h.detach())):
        leaf, calls = make_leaf(), []
        leaf.register_hook(lambda by: 3 * by)
        leaf.register_post_accumulate_grad_hook(lambda of: calls.append(of.grad.clone()))
        close(go(leaf), 3 * plain)
        close(calls[0], 3 * plain)
        leaf = make_leaf()
        leaf.register_post_accumulate_grad_hook(lambda of: calls.append(of.grad.clone()))
        close(go(leaf), plain)
        assert len(calls) == 2
        leaf = make_leaf()
        leaf.register_hook(lambda by: -by)
        close(go(leaf), -plain)
    x = h.detach().requires_grad_()
    y = 2 * x
    y.register_hook(lambda by: 5 * by)
    y.retain_grad()
    head = make()
    head(y, targets).backward()
    close(x.grad, 2 * y.grad)
    z = y.detach().requires_grad_()
    squared_error(make(), z, targets).mean().backward()
    close(y.grad, 5 * z.grad)


def test_hooks_of_modules_around_the_head():
    head, h, calls = make(), hidden(), []
    head.register_full_backward_hook(lambda module, by_h, by_L: calls.append(by_L[0].item()))
    head.register_forward_hook(lambda module, given, loss: calls.append(loss.item()))
    loss = head(h, torch.arange(m))
    loss.backward()
    assert calls == [loss.item(), 1.0] and h.grad is not None


def test_stock_that_somebody_holds_are_not_used_again():
    head = make(reduction="sum")
    kept = []
    for step in range(3 * _stock._STOCK):
        rows = 1 + step % 5
        h = torch.randn(rows, d, dtype=torch.float64, requires_grad=True)
        head(h, torch.arange(rows)).backward()
        view = h.grad.numpy() if step % 3 else h.grad.numpy()[:, 0]  # somebody may also hold another thing on that memory
        kept.append((view, np.array(view)))
        h.grad = None
        head.step(0.001)
        if step % 7 == 0:
            kept = kept[-2:]
    assert all((view == value).all() for view, value in kept)


def test_memory_of_stock_is_used_again_when_it_is_free():
    gradients = _stock.Gradients(np.dtype(np.float32))
    first = gradients.get((m, d))
    addresses = {first.address}
    tensor = first.tensor
    del first
    assert gradients.get((m, d)).address not in addresses  # a tensor is enough to hold it
    del tensor
    assert {gradients.get((m, d)).address for _ in range(4 * _stock._STOCK)} == addresses


def test_memory_of_stock_is_not_shared_by_threads_that_ask_at_once(monkeypatch):
    gradients = _stock.Gradients(np.dtype(np.float32))
    address = gradients.get((m, d)).address
    take, others = _stock._Room.take, []

    def take_after_another(room):  # who has looked at the same counts
        monkeypatch.setattr(_stock._Room, "take", take)
        others.append(gradients.get((m, d)))
        return take(room)

    monkeypatch.setattr(_stock._Room, "take", take_after_another)
    mine = gradients.get((m, d))
    assert others[0].address == address and mine.address != address


def test_an_h_that_changed_or_went_away_is_refused():
    head, h = make(), hidden()
    for change in (
        lambda: h.detach().zero_(),
        lambda: setattr(h, "data", torch.zeros_like(h)),
        lambda: h.untyped_storage().resize_(0),
    ):
        h = hidden()
        head(h, torch.arange(m)).backward()
        change()
        with pytest.raises(RuntimeError, match="modified in place"):
            head.step(0.1)
        head.zero_grad()
    for touch in (lambda loss: None, lambda loss: loss.grad_fn):
        h = hidden()
        loss = head(h, torch.arange(m))
        h.detach().zero_()
        touch(loss)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    loss = head(h, torch.arange(m))
    touched = head(h, torch.arange(m))
    h.detach().zero_()
    assert touched.requires_grad  # its graph is younger than the change
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        touched.backward()
    assert head.layer.steps == 0


def test_odd_kinds_of_h_are_read_for_what_they_are():
    z = torch.complex(torch.ones(1, 1, dtype=torch.float64), torch.full((1, 1), 0.5, dtype=torch.float64))
    negative = z.conj().imag  # −0.5, which stands in memory as 0.5
    assert negative.is_neg() and negative.is_contiguous()
    head, truth = make(dim=1), make(dim=1)
    close(head(negative, torch.tensor([3])), truth(torch.tensor([[-0.5]], dtype=torch.float64), torch.tensor([3])))
    with pytest.raises((TypeError, RuntimeError, ValueError)):
        head(torch.eye(1, 1, dtype=torch.float64).to_sparse(), torch.tensor([3]))
    with pytest.raises((TypeError, RuntimeError, ValueError)):
        make(dtype=torch.float32)(torch.ones(m, d).to_mkldnn(), torch.arange(m))


def test_addresses_that_cannot_be_are_refused():
    layer = make().layer
    targets = _core.Targets64(D, np.arange(m).ctypes.data, 0)
    assert targets.examples == 0
    h = np.zeros((m, d))
    indices = np.arange(m)
    targets = _core.Targets64(D, indices.ctypes.data, m)
    out = np.array(indices, np.int32)
    targets.copy_indices(out)
    assert (out == indices).all()
    grad_h = np.zeros((m, d))
    for bad in ((), (h.ctypes.data, m), (h.ctypes.data, m, d, 1), ("h", m, d), (h.ctypes.data, -1, d), (h.ctypes.data, 0.5, d)):
        with pytest.raises(TypeError):
            layer._core.judge(bad, targets, grad_h)
    for bad in ((h.ctypes.data, m, d - 1), (h.ctypes.data, m - 1, d)):
        with pytest.raises(ValueError):
            layer._core.judge(bad, targets, grad_h)
    by_array = layer._core.judge(h + 1, targets, grad_h)[0]
    ones = h + 1
    assert layer._core.judge((ones.ctypes.data, m, d), targets, (h.ctypes.data, m, d))[0] == by_array
    assert (h == grad_h).all() and h.any()
    indices[2] = D
    with pytest.raises(ValueError, match=r"targets: indices\[2\] = 30, but D = 30"):
        _core.Targets64(D, indices.ctypes.data, m)
