"""The way to a GPU, as far as it can be walked without one: errors, and what tensors are made into. A layer of the CPU stands in for
the one on a GPU, and tensors of the CPU for those there."""

import types

import numpy as np
import pytest
import widehead
from devices import NO_GPU
from widehead import _arrays, _device

D, d, m = 40, 6, 5


@pytest.mark.skipif(NO_GPU is None, reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_a_value_error():
    for device in ("cuda", "cuda:0"):
        with pytest.raises(ValueError, match=f"device '{device}': (this build has no CUDA|CUDA: cudaGetDeviceCount)"):
            widehead.OutputLayer(D, d, device=device)
    layer = widehead.OutputLayer(D, d)
    with pytest.raises(ValueError, match="device 'cuda'"):
        layer.to("cuda")
    assert layer.device == "cpu"


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:-1", "CPU", ""])
def test_devices_without_a_meaning_are_named(device):
    with pytest.raises(ValueError, match=f"device '{device}' is unknown; there are: cpu, cuda, cuda:NUMBER"):
        widehead.OutputLayer(D, d, device=device)


def test_a_layer_stays_where_it_is_told_to_stay(tmp_path):
    layer = widehead.OutputLayer(D, d, rows_file=tmp_path / "rows")
    assert layer.to("cpu") is layer
    with pytest.raises(ValueError, match="a layer with a rows_file stays where it is"):
        layer.to("cuda")


def test_rows_of_w_go_to_a_given_array():
    layer = widehead.OutputLayer(D, d, init="normal")
    W = layer.weights()
    wide = np.zeros((D, 2 * d), np.float32)
    for out in (np.zeros((D, d), np.float32), wide[:, d:]):
        assert layer.weights(out=out) is out and (out == W).all()
    out = np.zeros((3, d), np.float32)
    assert layer.weights([7, 8, 2], out=out) is out and (out == W[[7, 8, 2]]).all()
    for bad in (np.zeros((D, d)), np.zeros((D - 1, d), np.float32), np.zeros((d, D), np.float32).T):
        with pytest.raises(ValueError, match="out: "):
            layer.weights(out=bad)


def test_devices_are_dlpacks():
    assert [_device.number_of(name) for name in ("cuda", "cuda:0", "cuda:3")] == [0, 0, 3]
    assert _arrays.device_of(np.zeros(1)) in _arrays.CPU and _arrays.device_of([1]) in _arrays.CPU
    on_gpu = types.SimpleNamespace(__dlpack_device__=lambda: (2, 0))
    assert _device.is_on_gpu(on_gpu) and not _device.is_on_gpu(np.zeros(1))


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


class Recorder:
    """A core that says what was done with it, in order."""

    steps = 3

    def __init__(self, said):
        self.said = said

    def order(self, stream):
        said = self.said

        class Order:
            def __enter__(self):
                said.append(("enter", stream))

            def __exit__(self, *error):
                said.append(("exit", error[0]))

        return Order()

    def work(self, *arguments):
        self.said.append(("work", [type(each).__name__ for each in arguments]))
        if isinstance(arguments[-1], str):
            raise ArithmeticError
        return 7


def test_tensors_go_as_capsules_and_in_the_order_of_the_current_stream(torch, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(cuda_stream=123))
    said = []
    core = _device.Core(Recorder(said))
    assert core.steps == 3
    assert core.work(torch.zeros(2, 2), 1.0, np.zeros(2), None) == 7
    assert said == [("enter", 123), ("work", ["PyCapsule", "float", "ndarray", "NoneType"]), ("exit", None)]
    said.clear()
    with pytest.raises(ArithmeticError):  # what the layer has begun is waited for all the same
        core.work(torch.zeros(2, 2), "fail")
    assert said[-1] == ("exit", ArithmeticError)
    said.clear()
    core.work(np.zeros(2))  # nobody's stream is concerned
    assert [name for name, _ in said] == ["work"]


def test_a_head_elsewhere_is_a_head_here(torch, monkeypatch):
    """What WideHead does on a GPU, with a head that does not know that it is here."""
    from widehead.torch import WideHead, _ready

    random = torch.Generator().manual_seed(1)
    heads, found = [], []
    for reduction in ("mean", "sum"):
        heads.append([WideHead(d, D, loss="taylor", reduction=reduction, init="normal", threads=1) for _ in range(2)])
    batches = [
        (torch.randn(m, d, generator=random), torch.randint(0, D, (m,), generator=random)) for _ in range(10)
    ]

    def own(q, s, o):
        return (q * s).sum() + o.exp().mean()

    def train(head, step, h, targets):
        if step % 5 < 2:
            loss = head(h, targets)
            assert (type(loss) is _ready.PendingLoss) == head._journal.on_host
            if step % 5:
                loss.backward(retain_graph=True)
            (2 * loss).backward()
        elif step % 5 == 2:
            own(*head.statistics(h, targets)).backward()
        elif step % 5 == 3:
            return head.learn(h, targets, 0.01)
        else:
            return head.learn(h, targets, 0.01, own)
        head.step(0.01)
        return 0.0

    for here, there in heads:
        for head in (here, there):
            with monkeypatch.context() as patch:
                if head is there:
                    patch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(cuda_stream=0))
                    patch.setattr(torch.Tensor, "is_cpu", property(lambda self: False))
                    there.layer._core, there.layer._device = _device.Core(there.layer._core), "cuda"
                    there._journal.on_host = False
                for step, (h, targets) in enumerate(batches):
                    h = h.clone().requires_grad_()
                    found.append((train(head, step, 1 * h if step % 3 else h, targets), h.grad))
        mine, theirs = found[: len(batches)], found[len(batches) :]
        for (L, by_h), (other, by_other) in zip(mine, theirs):
            assert L == pytest.approx(other, rel=1e-6) and torch.allclose(by_h, by_other, rtol=1e-5, atol=1e-6)
        assert np.allclose(here.layer.weights(), there.layer.weights(), rtol=1e-5, atol=1e-6)
        assert here.layer.steps == there.layer.steps == len(batches)
        found.clear()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_on_tensors_are_steps_on_arrays(torch, monkeypatch, dtype):
    """Through the same bindings as on a GPU: DLPack capsules, of tensors with other layouts and types, too."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: True))
    monkeypatch.setattr(torch.Tensor, "get_device", lambda self: 0)
    layers = [widehead.OutputLayer(D, d, loss="taylor", dtype=dtype, init="normal", threads=1) for _ in range(2)]
    there = layers[1]
    there._core, there._device = _device.Core(there._core), "cuda"
    random = np.random.default_rng(1)
    for step in range(8):
        h, targets = random.standard_normal((m, d)).astype(dtype), random.integers(0, D, m)
        x = torch.from_numpy(h)
        wide = torch.zeros(m, 2 * d, dtype=x.dtype)
        wide[:, :d] = x
        x = [x, wide[:, :d], x.T.contiguous().T, x.double(), x.clone().requires_grad_()][step % 5]
        if step % 2:
            given = torch.from_numpy(targets), torch.full((m,), 0.5)
        else:
            given = targets, np.full(m, 0.5)
        for of in ("evaluate", "step"):
            lr = {"lr": 0.1} if of == "step" else {}
            L, gradient = getattr(layers[0], of)(h, targets, weights=np.full(m, 0.5), **lr)
            other, tensor = getattr(there, of)(x, given[0], weights=given[1], **lr)
            assert isinstance(tensor, torch.Tensor) and not tensor.requires_grad
            assert other == L and (tensor.numpy() == gradient).all()
        for mine, theirs in zip(layers[0].statistics(h, targets), there.statistics(x, targets)):
            assert isinstance(theirs, torch.Tensor) and (theirs.numpy() == mine).all()
        for mine, theirs in zip(layers[0].top_k(h, 3), there.top_k(x, 3)):
            assert (theirs.numpy() == mine).all()
        assert (there.scores(x, torch.tensor([3, 9])).numpy() == layers[0].scores(h, [3, 9])).all()
        assert (there.log_prob(x, targets).numpy() == layers[0].log_prob(h, targets)).all()
    out = torch.empty(D, d, dtype=x.dtype if dtype == "float64" else torch.float32)
    monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda self: False))
    assert there.weights(out=out) is out and (out.numpy() == layers[0].weights()).all()
    for bad, text in (
        (torch.zeros(d), r"h: shape \(6,\), but two dimensions"),
        (torch.zeros(m, d, dtype=torch.complex64), "h: torch.complex64"),
        (torch.zeros(m, d).to_sparse_csr(), "layout torch.sparse_csr"),
        (torch.zeros(m, d + 1), f"step: H is {d + 1} x {m}"),
    ):
        with pytest.raises(ValueError, match=text):
            there.step(bad, np.arange(m), lr=0.1)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda self: 1)
    with pytest.raises(ValueError, match="h: the array is on .*, but the layer is on cuda"):
        there.step(torch.zeros(m, d), np.arange(m), lr=0.1)
