"""WideHead beside the same layer written in PyTorch with an explicit W, in float64 unless the test is about float32, on every
device."""

import pickle

import numpy as np
import pytest
from devices import csr, needs_scipy, sparse

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import widehead
from torch_case import D, close, d, device, explicit, hidden, m, make, strange_loss, train  # noqa: F401: device is a fixture
from widehead import losses
from widehead.torch import _graph, _losses

# ── statistics ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("head", ["windowed", "factored", "dense"])
def test_gradcheck(head):
    module = make(head=head)
    train(module, 10)
    targets = torch.tensor([[0, 3, -1], [7, 7, 2], [29, -1, -1], [-1, -1, -1]])
    for kind in (targets, targets[:, 1].clamp(min=0), csr(np.eye(m, D, 3) + np.eye(m, D, 9))):
        assert torch.autograd.gradcheck(lambda h: module.statistics(h, kind), hidden())


@pytest.mark.parametrize("init", ["zero", "normal"])
@pytest.mark.parametrize("head", ["windowed", "factored", "dense"])
def test_any_loss_trains_w_as_sgd_on_an_explicit_w_does(head, init):
    module = make(head=head, init=init, weight_decay=0.1)
    W = module.weights().requires_grad_()
    sgd = torch.optim.SGD([W], lr=0.001, weight_decay=0.1)
    for step in range(40):
        targets = torch.randint(0, D, (m, 3))
        h = hidden()
        truth = h.detach().clone().requires_grad_()
        loss = strange_loss(*module.statistics(h, targets))
        expected = strange_loss(*explicit(W, truth, targets))
        close(loss, expected)
        loss.backward()
        expected.backward()
        close(h.grad, truth.grad)
        sgd.step()
        sgd.zero_grad()
        module.step(0.001)
        close(module.weights(), W.detach(), 1e-11)
    assert module.layer.steps == 40


def test_float32_keeps_its_bound_beside_float64():
    module = make(dtype=torch.float32, init="normal")
    W = module.weights().double().requires_grad_()
    for _ in range(30):
        targets = torch.randint(0, D, (m,))
        h = torch.randn(m, d)
        q, s, o = module.statistics(h, targets)
        assert q.dtype == s.dtype == o.dtype == torch.float64
        loss = (q - 2 * o + 0.01 * s**2).sum()
        Q, S, O = explicit(W, h.double(), targets)
        expected = (Q - 2 * O + 0.01 * S**2).sum()
        close(loss, expected, 1e-5)
        loss.backward()
        expected.backward()
        with torch.no_grad():
            W -= 0.01 * W.grad
        W.grad = None
        module.step(0.01)
    close(module.weights(), W.detach(), 1e-5)


def test_targets_of_every_kind_are_the_same():
    module, h = make(), hidden()
    rows = [[1, 5], [5, 29], [0, 7], [8, 2]]
    dense = np.zeros((m, D))
    for j, row in enumerate(rows):
        dense[j, row] = 1
    indptr, indices, data = np.arange(m + 1) * 2, np.nonzero(dense)[1], np.ones(2 * m)
    truth = module.statistics(h, torch.tensor(np.sort(rows)))
    kinds = [csr(dense), (indptr, indices, data), torch.tensor(dense).to_sparse_csr()]
    kinds.append(tuple(torch.from_numpy(each) for each in kinds[1]))
    kinds.append(tuple(torch.tensor(each) for each in kinds[1]))  # on the device
    for kind in kinds:
        q, s, o = module.statistics(h, kind)
        assert o.shape == (8,)
        close(q, truth[0]), close(s, truth[1]), close(o.reshape(m, 2), truth[2])
    for integer in (torch.int32, torch.int64, torch.uint8):
        close(
            module.statistics(h, torch.tensor(rows, dtype=integer)[:, 0])[2],
            explicit(module.weights(), h, torch.tensor(rows))[2][:, 0],
        )
    close(module.statistics(h, np.array(rows)[:, 1])[2], explicit(module.weights(), h, torch.tensor(rows))[2][:, 1])


@pytest.mark.parametrize(
    ("h", "targets", "text"),
    [
        (torch.zeros(m, d + 1), torch.zeros(m, dtype=int), r"h: shape \(4, 6\)"),
        (torch.zeros(d), torch.zeros(m, dtype=int), r"h: shape \(5,\)"),
        (torch.full((m, d), torch.nan), torch.zeros(m, dtype=int), r"statistics: H\(0, 0\) = nan is not finite"),
        (torch.zeros(m, d, device="meta"), torch.zeros(m, dtype=int), "h: the tensor is on meta"),
        (torch.zeros(m, d), torch.zeros(m), r"targets: torch.float32 of shape \(4,\)"),
        (torch.zeros(m, d), torch.full((m,), D), rf"targets: indices\[0\] = {D}, but D = {D}"),
        (torch.zeros(m, d), torch.full((m, 2), -2), r"targets: indices\[0\] = -2"),
        (torch.zeros(m, d), torch.zeros(2, dtype=int), "statistics: 2 targets for 4 examples"),
        (torch.zeros(m, d), torch.zeros(m, D).to_sparse_coo(), "layout torch.sparse_coo"),
        (torch.zeros(m, d), torch.zeros(m, D + 1).to_sparse_csr(), f"D = {D + 1}"),
        pytest.param(torch.zeros(m, d), sparse and sparse.csc_matrix((m, D)), "csc format", marks=needs_scipy),
    ],
)
def test_bad_arguments_are_named(h, targets, text, device):
    h, targets = (x.to(device) if isinstance(x, torch.Tensor) and x.is_cpu else x for x in (h, targets))
    with pytest.raises(ValueError, match=text):
        make().statistics(h, targets)


# ── ready-made losses ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("loss", [*losses._CLASSES[:-1], losses.ZLoss(1.5, 0.4), losses.SphericalSoftmax(0.3)])
def test_ready_made_losses_are_those_of_the_layer(loss, device):
    """Loss, ∂L/∂h and the step of W, with an output named twice and examples without targets."""
    loss = loss() if isinstance(loss, type) else loss
    layer = widehead.OutputLayer(D, d, loss=loss, dtype="float64", init="normal", threads=1, device=device)
    module = make(loss=loss, reduction="sum")
    random = np.random.default_rng(0)
    for _ in range(15):
        indptr, indices = np.array([0, 3, 3, 4, 9]), random.integers(0, D, 9).astype(np.int32)
        indices[1] = indices[0]
        targets = indptr, indices, 0.2 + abs(random.standard_normal(9))
        h = hidden()
        L = module(h, targets)
        L.backward()
        expected, gradient = layer.step(h, targets, lr=0.01)
        close(L, expected)
        close(h.grad, gradient)
        module.step(0.01)
        close(module.weights(), layer.weights(), 1e-11)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("loss", [losses.SquaredError(), losses.TaylorSoftmax(), losses.ZLoss(1.5, 0.4)])
def test_the_losses_of_the_layer_are_those_on_the_statistics(loss, weight_decay):
    """Whatever is done with them: a factor of either sign, accumulation, others beside them, questions in between."""
    fast = make(loss=loss, weight_decay=weight_decay, uses_sum=False)
    slow = make(loss=_losses.of(loss), weight_decay=weight_decay)
    ways = [
        lambda head, h, t: head(h, t).backward(),
        lambda head, h, t: (-0.3 * head(h, t)).backward(),
        lambda head, h, t: (head(h, t) + 2 * head(h[:2], t[:2]) ** 2).backward(),
        lambda head, h, t: (head(h, t) + head.statistics(h, t)[0].mean()).backward(),
        lambda head, h, t: (head.top_k(h, 2), head(h, t), head.top_k(h, 2))[1].backward(),
        lambda head, h, t: [head(h, t).backward(), head.scores(h, [1])],
        lambda head, h, t: [loss.backward(retain_graph=True) for loss in [head(h, t)] for _ in range(3)],
    ]
    for step in range(21):
        x, targets = hidden(), torch.randint(0, D, (m, 2) if step % 2 else (m,))
        grads = []
        for head in (fast, slow):
            h = x.detach().clone().requires_grad_()
            ways[step % len(ways)](head, h, targets)
            grads.append(h.grad)
            head.step(0.05)
        close(grads[0], grads[1])
        close(fast.weights(), slow.weights(), 1e-11)
    with torch.no_grad():
        close(fast(x, targets), slow(x, targets))
        assert not fast(x, targets).requires_grad


def test_a_ready_made_loss_is_a_tensor_like_others(device):
    """Although its backward() is not PyTorch's: hooks see the same, a graph is there once, what is computed from it is plain."""
    module, truth, targets = make(), make(), torch.arange(m)
    for arguments in ({}, {"gradient": torch.tensor(-2.0, dtype=torch.float64)}, {"retain_graph": True}, {"inputs": "h"}):
        h = hidden()
        x = h.detach().clone().requires_grad_()
        loss, expected, seen = module(h, targets), truth(x, targets), []
        for each, leaf in ((loss, h), (expected, x)):
            each.register_hook(lambda by: seen.append(by.item()))
            each.retain_grad()
            given = {name: leaf if name == "inputs" else value for name, value in arguments.items()}
            (each.backward if each is loss else torch.Tensor.backward.__get__(each))(**given)
        close(h.grad, x.grad), close(loss.grad, expected.grad)
        assert len(seen) == 2 and seen[0] == seen[1]
        assert len(module._journal.records()) == len(truth._journal.records()) == (0 if "inputs" in arguments else 1)
        if "retain_graph" not in arguments:
            with pytest.raises(RuntimeError, match="second time"):
                loss.backward()
        module.zero_grad(), truth.zero_grad()
    assert type(loss + 1) is type(loss.detach()) is type(torch.stack([loss, loss])) is torch.Tensor
    kept = pickle.loads(pickle.dumps(loss))
    assert type(kept) is torch.Tensor and kept == loss


def test_a_pytorch_without_the_short_cut_to_its_engine(monkeypatch):
    def trained():
        torch.manual_seed(1)
        module, below = make(), torch.nn.Linear(7, d, dtype=torch.float64)
        for step in range(6):
            h, targets = below(torch.randn(m, 7, dtype=torch.float64)), torch.randint(0, D, (m,))
            if step % 2:
                module.learn(h, targets, 0.05)
            else:
                module(h, targets).backward()
                module.step(0.05)
        return module.weights(), below.weight.grad

    W, gradient = trained()
    monkeypatch.setattr(_graph, "_engine_run_backward", None)
    other_W, other_gradient = trained()
    assert (W == other_W).all() and (gradient == other_gradient).all()


def test_the_pole_of_the_spherical_softmax_is_finite(device):
    W = np.zeros((D, d))
    W[3, 0] = -1
    module = make(init=W, loss=losses.SphericalSoftmax(1.0), reduction="sum")
    layer = widehead.OutputLayer(D, d, loss=losses.SphericalSoftmax(1.0), dtype="float64", init=W, device=device)
    h = torch.eye(1, d, dtype=torch.float64).requires_grad_()
    L = module(h, torch.tensor([3]))
    L.backward()
    expected, gradient = layer.evaluate(h, np.array([3]))
    close(L, expected), close(h.grad, gradient)
    assert L.isfinite() and h.grad.isfinite().all()


def test_reductions_and_losses_of_ones_own():
    h, targets = hidden(), torch.tensor([1, 2, 3, 4])
    each = make(reduction="none")(h, targets)
    assert each.shape == (m,)
    close(make(reduction="sum")(h, targets), each.sum())
    close(make()(h, targets), each.mean())

    def own(head, h, targets):
        q, s, o = head.statistics(h, targets)
        return q + s - o

    close(make(loss=own, reduction="none")(h, targets), own(make(), h, targets))
    with pytest.raises(ValueError, match="loss own"):
        make(loss="own")(h, targets)
    for options, text in (
        ({"reduction": "max"}, "reduction 'max' is unknown"),
        ({"dtype": torch.float16}, "dtype torch.float16 is unknown"),
        ({"device": "vulkan"}, "device 'vulkan' is unknown; there are: cpu, cuda"),
        ({"loss": "hinge"}, "loss 'hinge' is unknown"),
        ({"head": "softmax"}, "cross-entropy"),
    ):
        with pytest.raises(ValueError, match=text):
            make(**options)
