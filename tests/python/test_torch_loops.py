"""WideHead in PyTorch's loops: accumulation, optimizers, loaders, autocast; and keeping it."""

import copy
import io

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import widehead
from torch import nn
from torch_case import D, close, d, device, explicit, hidden, m, make, strange_loss, train  # noqa: F401: device is a fixture
from widehead.torch import SGD, WideHead

# ── accumulation, and what PyTorch's loops do ────────────────────────────────────────────────────


def test_accumulated_gradients_are_one_step_on_the_sum():
    module = make(weight_decay=0.1)
    W = module.weights().requires_grad_()
    for step in range(10):
        for rows in (3, 1, 4):
            h, targets = hidden(rows), torch.randint(0, D, (rows, 2))
            strange_loss(*module.statistics(h, targets)).backward()
            strange_loss(*explicit(W, h, targets)).backward()
        module.step(0.002)
        with torch.no_grad():
            W.copy_((1 - 0.002 * 0.1) * W - 0.002 * W.grad)
        W.grad = None
        close(module.weights(), W.detach(), 1e-11)
    assert module.layer.steps == 10


def test_two_losses_of_one_forward_and_a_backward_done_twice():
    module = make()
    W = module.weights().requires_grad_()
    h, targets = hidden(), torch.tensor([1, 2, 2, 3])
    q, s, o = module.statistics(h, targets)
    q.sum().backward(retain_graph=True)
    (s * o).sum().backward(retain_graph=True)
    (s * o).sum().backward()
    Q, S, O = explicit(W, h.detach(), targets)
    (Q.sum() + 2 * (S * O).sum()).backward()
    module.step(0.01)
    close(module.weights(), (W - 0.01 * W.grad).detach())


def test_two_minibatches_on_their_way_at_once():
    """The layer remembers one minibatch; the others are computed again."""
    module = make()
    W = module.weights().requires_grad_()
    batches = [(hidden(), torch.randint(0, D, (m,))) for _ in range(3)]
    outs = [module.statistics(*batch) for batch in batches]
    module.scores(batches[0][0], [1, 2])
    module.top_k(batches[0][0], 3)
    total = sum(strange_loss(*out) for out in outs)
    total.backward()
    grads = [h.grad.clone() for h, _ in batches]
    for h, _ in batches:
        h.grad = None
    sum(strange_loss(*explicit(W, *batch)) for batch in batches).backward()
    for (h, _), grad in zip(batches, grads):
        close(grad, h.grad)
    module.step(0.001)
    close(module.weights(), (W - 0.001 * W.grad).detach())


def test_gradients_that_somebody_holds_stay():
    module = make()
    hs = [hidden() for _ in range(8)]
    kept = []
    for h in hs:
        module(h, torch.arange(m)).backward()
        kept.append(h.grad.clone())
        module.step(0.1)
    assert all((h.grad == grad).all() for h, grad in zip(hs, kept))


def test_autograd_grad_records_nothing():
    module, h = make(), hidden()
    (grad,) = torch.autograd.grad(module(h, torch.arange(m)), h)
    assert grad.shape == h.shape
    module.step(0.1)
    assert module.layer.steps == 0


def test_autograd_grad_beside_backward_records_nothing():
    """Whichever comes first, and in whatever graph."""
    for before, after in ((True, False), (False, True), (True, True)):
        module, other, h, t = make(), make(), hidden(), torch.arange(m)
        ask = lambda: torch.autograd.grad(module.statistics(h, t)[0].sum() + module(h, t), h)  # noqa: E731
        for step in range(3):
            if before:
                ask()
            module(h, t).backward()
            if after:
                ask()
            other(h, t).backward()
            module.step(0.1)
            other.step(0.1)
        close(module.weights(), other.weights())
        assert module.layer.steps == 3


def test_targets_may_change_after_forward():
    for given in (torch.arange(m), torch.arange(m, dtype=torch.int32), torch.arange(2 * m).reshape(m, 2)):
        module, other, h = make(), make(), hidden()
        for head, t in ((module, given.clone()), (other, given)):
            losses = head(h, t), head.statistics(h, t)[2].sum()
            if head is module:
                t.zero_()
            for loss in losses:
                loss.backward()
            head.step(0.1)
        assert (module.weights() == other.weights()).all()


def test_h_of_other_layouts_is_the_same():
    truth, t = make(dtype=torch.float32), torch.arange(m)
    h = hidden()
    truth(h.float(), t).backward()
    truth.step(0.1)
    wide = torch.zeros(m, 2 * d)
    wide[:, :d] = h.detach()
    for same in (wide[:, :d], h.detach().float().T.contiguous().T, h.detach(), h.detach().float().flip(0).flip(0)):
        module = make(dtype=torch.float32)
        module(same, t[None].repeat(2, 1).T[:, 0]).backward()  # and targets with strides
        module.step(0.1)
        assert (module.weights() == truth.weights()).all()


def test_zero_grad_of_anyone_forgets():
    module = make()
    model = nn.Sequential(nn.Linear(d, d), nn.ModuleDict({"head": module}))
    sgd = SGD(model, lr=0.1)
    W = module.weights()
    for forget in (module.zero_grad, model.zero_grad, sgd.zero_grad, torch.optim.Adam(model.parameters()).zero_grad):
        module(hidden(), torch.arange(m)).backward()
        forget()
        module.step(0.1)
        assert (module.weights() == W).all() and module.layer.steps == 0
    module(hidden(), torch.arange(m)).backward()
    model.zero_grad()
    h = hidden()
    module(h, torch.arange(m)).backward()  # only this one counts
    module.step(0.1)
    other = make()
    other(h, torch.arange(m)).backward()
    other.step(0.1)
    assert (module.weights() == other.weights()).all()


def test_a_step_uses_up_what_was_recorded():
    module = make()
    module(hidden(), torch.arange(m)).backward()
    module.step(0.1)
    W = module.weights()
    module.step(0.1)
    assert (module.weights() == W).all() and module.layer.steps == 1


def test_no_grad_and_frozen_heads():
    module, h = make(), hidden()
    with torch.no_grad():
        q, s, o = module.statistics(h, torch.arange(m))
    assert not q.requires_grad and not o.requires_grad
    module.requires_grad_(False)
    module(h, torch.arange(m)).backward()
    assert h.grad is not None
    module.step(0.1)
    assert module.layer.steps == 0
    module.requires_grad_(True)
    module(h.detach(), torch.arange(m)).backward()  # nothing below is trained, W is
    module.step(0.1)
    assert module.layer.steps == 1


def test_a_stale_graph_and_a_changed_h_are_refused():
    module, h = make(), hidden()
    first, second = module(h, torch.arange(m)), module(h, torch.arange(m))
    first.backward()
    module.step(0.1)
    with pytest.raises(RuntimeError, match="W has changed since the loss was computed"):
        second.backward()
    loss = module(h, torch.arange(m))
    module.load_state_dict(module.state_dict())
    with pytest.raises(RuntimeError, match="W has changed"):
        loss.backward()
    loss = module(h, torch.arange(m))
    module.layer.load_state(module.layer.state())
    with pytest.raises(RuntimeError, match="W has changed"):
        loss.backward()
    q, _, _ = module.statistics(h, torch.arange(m))
    module(h, torch.arange(m)).backward()
    module.step(0.1)
    with pytest.raises(RuntimeError, match="W has changed since statistics"):
        q.sum().backward()
    for loss_of in (module, lambda *given: module.statistics(*given)[0].sum()):
        x = hidden()
        y = 2 * x
        loss = loss_of(y, torch.arange(m))
        with torch.no_grad():
            y.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    x = hidden()
    q, _, _ = module.statistics(x, torch.arange(m))
    x.data = torch.zeros_like(x)
    if x.is_cpu:  # elsewhere the layer holds what it was given
        with pytest.raises(RuntimeError, match="h has been given other memory"):
            q.sum().backward()
    x = hidden().detach()
    module(x, torch.arange(m)).backward()
    x.zero_()
    with pytest.raises(RuntimeError, match="modified in place"):
        module.step(0.1)
    with pytest.raises(RuntimeError, match="differentiate twice|once_differentiable"):
        q, _, _ = module.statistics(h, torch.arange(m))
        (g,) = torch.autograd.grad((q**2).sum(), h, create_graph=True)
        g.sum().backward()


def test_a_loss_that_diverged_raises_and_changes_nothing():
    module, h = make(), hidden()
    W = module.weights()
    q, s, o = module.statistics(h, torch.arange(m))
    with pytest.raises(ArithmeticError, match="∂L/∂q = nan"):
        (q * torch.nan).sum().backward()
    module.zero_grad()
    q, s, o = module.statistics(h, torch.arange(m))
    q.sum().backward()
    with pytest.raises(ValueError, match="eta = -1"):
        module.step(-1.0)
    assert (module.weights() == W).all() and module.layer.steps == 0


def test_a_training_loop_with_optimizers_a_scheduler_and_a_loader(device):
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(1)
    kind = torch.randint(0, 10, (256,))
    X, y = torch.randn(10, 8)[kind] + 0.1 * torch.randn(256, 8), 17 * kind + 3
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh())
    head = WideHead(32, 200, threads=1).to(device)
    everything = nn.ModuleList([model, head])
    lower = torch.optim.Adam(everything.parameters(), lr=1e-2)  # the head's empty parameter does no harm
    upper = SGD(head, lr=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(upper, step_size=1, gamma=0.9)
    history = []
    for _ in range(30):
        total = 0.0
        for x, target in DataLoader(TensorDataset(X, y), 64, shuffle=True, generator=torch.Generator(device)):
            lower.zero_grad()
            upper.zero_grad()
            loss = head(model(x), target)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(everything.parameters(), 1.0)
            lower.step()
            upper.step()
            total += loss.item()
        schedule.step()
        history.append(total / 4)
    assert history[-1] < 0.5 * history[0]
    assert head.layer.steps == 120
    assert upper.param_groups[0]["lr"] == pytest.approx(0.5 * 0.9**30)
    restored = SGD(head, lr=1.0)
    restored.load_state_dict(upper.state_dict())
    assert restored.param_groups[0]["lr"] == upper.param_groups[0]["lr"]
    with pytest.raises(ValueError, match="no WideHead"):
        SGD(model, lr=0.1)
    with pytest.raises(ValueError, match="lr = -1"):
        SGD(head, lr=-1)


def test_autocast_around_the_lower_layers(device):
    torch.manual_seed(0)
    below = nn.Linear(7, d)
    head = WideHead(d, D, init="normal", threads=1, device=device)
    x, targets = torch.randn(m, 7), torch.arange(m)
    with torch.autocast(device, dtype=torch.bfloat16):
        h = below(x)
        assert h.dtype == torch.bfloat16
        h.retain_grad()
        loss = head(h, targets)
    loss.backward()
    assert h.grad.dtype == torch.bfloat16 and below.weight.grad.dtype == torch.float32
    layer = widehead.OutputLayer(D, d, init="normal", threads=1, device=device)
    expected, gradient = layer.step(h.float(), targets, lr=0.1 / m)
    close(loss * m, expected, 1e-6)
    close(h.grad.float() * m, gradient, 1e-2)
    head.step(0.1)
    close(head.weights(), layer.weights(), 1e-6)


def test_grad_scale_undoes_the_scale_of_the_loss():
    one, other, h = make(), make(), hidden()
    one(h, torch.arange(m)).backward()
    one.step(0.1)
    (1024 * other(h, torch.arange(m))).backward()
    other.step(0.1, grad_scale=1024)
    close(one.weights(), other.weights())


# ── keeping it ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("head", ["windowed", "factored", "dense"])
def test_state_dict_goes_on_bit_for_bit(head, tmp_path):
    model = nn.ModuleDict({"below": nn.Linear(d, d), "head": make(head=head)})
    train(model["head"], 25)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    other = nn.ModuleDict({"below": nn.Linear(d, d), "head": make(head=head, seed=9)})
    other.load_state_dict(torch.load(buffer))
    whole = io.BytesIO()
    torch.save(model, whole)
    whole.seek(0)
    copies = [other, copy.deepcopy(model), torch.load(whole, weights_only=False)]
    torch.manual_seed(3)
    train(model["head"], 15)
    for each in copies:
        assert each["head"].layer.steps == 25
        torch.manual_seed(3)
        train(each["head"], 15)
        assert (each["head"].weights() == model["head"].weights()).all()


def test_state_dicts_that_do_not_fit_are_refused():
    module = make()
    with pytest.raises(RuntimeError, match="Missing key"):
        module.load_state_dict({})
    with pytest.raises(RuntimeError, match="WideHead: state: .* is missing"):
        module.load_state_dict({"steps": torch.tensor(3)})
    with pytest.raises(RuntimeError, match="does not belong to this layer"):
        module.load_state_dict({**module.state_dict(), "more": torch.zeros(1)})
    with pytest.raises(RuntimeError, match="head: state"):
        nn.ModuleDict({"head": module}).load_state_dict(nn.ModuleDict({"head": make(outputs=D + 1)}).state_dict())


def test_state_dict_as_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    module = make()
    train(module, 5)
    state = {name: value.contiguous() for name, value in module.state_dict().items()}
    safetensors.save_file(state, tmp_path / "head.safetensors")
    other = make(seed=4)
    other.load_state_dict(safetensors.load_file(tmp_path / "head.safetensors"))
    assert (other.weights() == module.weights()).all()


def test_a_handle_that_pytorch_made_anew_is_the_one_that_counts(device):
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        module = make().to(device)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    module(hidden(), torch.arange(m)).backward()
    module.zero_grad()
    module.step(0.1)
    assert module.layer.steps == 0
    module(hidden(), torch.arange(m)).backward()
    module.step(0.1)
    assert module.layer.steps == 1


def test_moves_that_cannot_be_are_refused(device):
    module = make(dtype=torch.float32)
    assert module.to(device) is module and module.float() is module
    with pytest.raises(ValueError, match="cannot become torch.float64"):
        module.double()
    with pytest.raises(ValueError, match="device 'meta'"):
        module.to("meta")


def test_questions():
    module, h = make(), hidden()
    O = h @ module.weights().T
    outputs, scores = module.top_k(h, 3)
    assert (outputs == O.topk(3).indices).all()
    close(scores, O.topk(3).values.detach())
    close(module.scores(h, torch.tensor([4, 2])), O[:, [4, 2]].detach())
    close(module.weights([3, 4]), module.weights()[[3, 4]])
    assert "outputs=30" in repr(module) and "SquaredError" in repr(module)
