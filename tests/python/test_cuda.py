"""What is peculiar to a GPU: whose memory is used, in which order, and layers that move. That a GPU computes the same as the CPU the
other tests say, which run on both."""

import copy
import pickle
import threading

import numpy as np
import pytest
import widehead
from devices import here, needs_gpu, there
from widehead import _core

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn
from widehead.torch import SGD, WideHead

pytestmark = needs_gpu
D, d, m = 50, 6, 4
TARGETS = np.array([3, 7, 7, 49])


def make(**options):
    return widehead.OutputLayer(**{"outputs": D, "dim": d, "init": "normal", "device": "cuda", **options})


def hidden(**options):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(m, d, generator=generator).to("cuda", **options)


# ── whose memory ─────────────────────────────────────────────────────────────────────────────────


def test_what_is_asked_on_the_gpu_is_answered_there():
    layer, h = make(loss="taylor"), hidden()
    L, gradient = layer.step(h, TARGETS, lr=0.1)
    answers = [gradient, layer.evaluate(h, TARGETS)[1], layer.scores(h, [1, 2]), *layer.top_k(h, 3)]
    answers += [*layer.statistics(h, TARGETS), layer.log_prob(h, TARGETS)]
    assert isinstance(L, float)
    assert all(each.device == h.device for each in answers)
    assert gradient.data_ptr() != h.data_ptr() and gradient.dtype == h.dtype
    assert torch.cuda.current_device() == 0 and layer.device == "cuda" and "cuda" in repr(layer)
    out = torch.empty(D, d, device="cuda")
    assert layer.weights(out=out) is out
    assert (out.cpu().numpy() == layer.weights()).all()


def test_what_is_asked_on_the_host_is_answered_there():
    layer, other, h = make(), make(), hidden()
    L, gradient = layer.step(h.cpu().numpy(), TARGETS, lr=0.1)
    assert isinstance(gradient, np.ndarray)
    expected, on_gpu = other.step(h, TARGETS, lr=0.1)
    assert L == expected and (gradient == here(on_gpu)).all() and (layer.weights() == other.weights()).all()


def test_nothing_is_copied_that_need_not_be():
    layer, h = make(), hidden()
    wide = torch.zeros(m, 9, device="cuda")
    assert layer._table(h, "h").data_ptr() == h.data_ptr()
    assert layer._table(wide[:, :d], "h").data_ptr() == wide.data_ptr()
    assert layer._table(h.requires_grad_(), "h").data_ptr() == h.data_ptr()


def test_h_of_other_layouts_and_types_is_the_same():
    h = hidden()
    truth = make().step(h, TARGETS, lr=0.1)
    wide = torch.zeros(m, 2 * d, device="cuda")
    wide[:, :d] = h
    for same in (h.T.contiguous().T, h.double(), wide[:, :d], h.clone().requires_grad_()):
        L, gradient = make().step(same, TARGETS, lr=0.1)
        assert L == pytest.approx(truth[0], rel=1e-6) and gradient.is_cuda and gradient.dtype == torch.float32
        assert torch.allclose(gradient, truth[1], rtol=1e-5, atol=1e-6)


def test_arrays_of_other_libraries_are_taken_by_dlpack():
    h, asked = hidden(), []

    class Foreign:
        def __dlpack__(self, **options):
            asked.append(options.get("stream"))
            return h.__dlpack__(**options)

        def __dlpack_device__(self):
            return h.__dlpack_device__()

    L, gradient = make().step(Foreign(), TARGETS, lr=0.1)
    assert L == make().step(h, TARGETS, lr=0.1)[0] and gradient.is_cuda
    assert len(asked) == 1 and asked[0] is not None  # with a stream that must wait for it


def test_cupy_arrays_go_in_and_come_out():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    h = hidden()
    L, gradient = make().step(cupy.from_dlpack(h), TARGETS, lr=0.1)
    expected, truth = make().step(h, TARGETS, lr=0.1)
    assert L == expected and cupy.asnumpy(cupy.from_dlpack(gradient)).tolist() == here(truth).tolist()


def test_targets_and_weights_on_the_gpu_are_fetched():
    h, results = hidden(), []
    for device in ("cpu", "cuda"):
        layer = make()
        weights = there(device, np.array([1, 0.5, 2, 0], np.float32))
        results.append([layer.step(h, there(device, TARGETS), lr=0.1, weights=weights)[0]])
        parts = np.arange(m + 1), TARGETS.astype(np.int32), np.full(m, 0.5, np.float32)
        results[-1].append(layer.step(h, tuple(there(device, part) for part in parts), lr=0.1)[0])
        results[-1].append(layer.weights(there(device, TARGETS)).tolist())
    assert results[0] == results[1]


def test_arrays_that_are_elsewhere_or_no_table_are_named():
    layer, h = make(), hidden()
    for bad, text in (
        (h[0], r"h: shape \(6,\), but two dimensions are expected"),
        (h[:, :5], "step: H is 5 x 4"),
        (h * torch.nan, r"step: H\(0, 0\) = nan is not finite"),
        (h.to(torch.complex64), "h: torch.complex64"),
    ):
        with pytest.raises(ValueError, match=text):
            layer.step(bad, TARGETS, lr=0.1)
    assert layer.steps == 0
    with pytest.raises(ValueError, match="h: the array is on another device, but the layer is on cpu"):
        make(device="cpu").step(h, TARGETS, lr=0.1)
    head = WideHead(d, D, device="cuda")
    with pytest.raises(ValueError, match="h: the tensor is on cpu, but the head is on cuda:0"):
        head(h.cpu(), TARGETS)
    with pytest.raises(ValueError, match="h: the tensor is on cuda:0, but the head is on cpu"):
        WideHead(d, D)(h, TARGETS)
    with pytest.raises(ValueError, match="there are"):
        make(device=f"cuda:{torch.cuda.device_count()}")
    with pytest.raises(TypeError, match="incompatible"):  # the extension looks, too
        make(dtype="float64")._core.step(h, _core.Targets64(D, None, TARGETS, None), 0.1, None, None)


# ── in which order ───────────────────────────────────────────────────────────────────────────────

LONG = 200_000_000  # cycles: a tenth of a second


@pytest.mark.parametrize("own_stream", [False, True])
@pytest.mark.parametrize("head", ["windowed", "dense"])
def test_a_step_waits_for_what_writes_h_and_is_waited_for(head, own_stream):
    """h is written late and overwritten early, the gradient read at once: by a stream that nobody has waited for."""
    outputs, dim, batch = 200_000, 256, 64
    random = np.random.default_rng(0)
    truth = random.standard_normal((batch, dim)).astype(np.float32)
    targets = random.integers(0, outputs, batch)
    options = {"head": head, "device": "cuda", "init": "normal"}
    layer, other = (widehead.OutputLayer(outputs, dim, **options) for _ in range(2))
    source, h = torch.from_numpy(truth).cuda(), torch.zeros(batch, dim, device="cuda")
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    torch.cuda.synchronize()
    for _ in range(3):
        expected, gradient = other.step(truth, targets, lr=1e-4)
        with torch.cuda.stream(stream):
            h.zero_()
            torch.cuda._sleep(LONG)
            h.copy_(source)
            L, found = layer.step(h, targets, lr=1e-4)
            h.fill_(torch.nan)  # the layer has done with it by now, in the order of the stream
            found = found.clone()
        stream.synchronize()
        assert L == expected and (here(found) == gradient).all()
    assert (layer.weights() == other.weights()).all()


def test_memory_that_pytorch_hands_out_again_is_not_written_too_early():
    """∂L/∂h is new memory of PyTorch's, of which a kernel in its stream may still be reading."""
    layer = widehead.OutputLayer(1000, 512, init="normal", device="cuda")
    h, targets = torch.randn(512, 512, device="cuda"), np.arange(512)
    torch.cuda.synchronize()
    for _ in range(5):
        old = torch.full((512, 512), 3.0, device="cuda")
        torch.cuda._sleep(LONG // 10)
        total = old.sum()
        del old  # free for PyTorch, and first in line
        layer.evaluate(h, targets)
        assert total.item() == 3.0 * 512 * 512


def test_backward_on_a_stream_of_its_own():
    results = []
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        torch.manual_seed(0)
        below, head = nn.Linear(d, 32, device="cuda"), WideHead(32, D, init="normal", device="cuda")
        x, t = hidden(), torch.from_numpy(TARGETS)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(5):
                torch.cuda._sleep(LONG // 10)
                q, s, o = head.statistics(below(x), t)
                (q - 2 * o + 0.1 * s).mean().backward()
                head.step(0.1)
        stream.synchronize()
        results.append((head.weights().cpu(), below.weight.grad.cpu()))
    assert all((a == b).all() for a, b in zip(*results))


def test_threads_with_streams_of_their_own_share_a_layer():
    layer = make(dtype="float64", init="zero")
    random = np.random.default_rng(3)
    work = [[(random.standard_normal((m, d)), random.integers(0, D, m)) for _ in range(25)] for _ in range(4)]
    wrong = []

    def run(batches):
        with torch.cuda.stream(torch.cuda.Stream()):
            for h, targets in batches:
                _, gradient = layer.step(torch.from_numpy(h).cuda(), targets, lr=1e-3)
                if not bool(torch.isfinite(gradient).all()):
                    wrong.append(gradient)

    threads = [threading.Thread(target=run, args=(batches,)) for batches in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    W = layer.weights()
    assert layer.steps == 100 and not wrong
    assert np.isfinite(W).all() and np.linalg.norm(layer.gram() - W.T @ W) < 1e-12 * np.linalg.norm(W) ** 2


# ── layers that move ─────────────────────────────────────────────────────────────────────────────


def train(layer, steps, seed):
    """At λ₁ of about 0.2: beyond 1 the inverse of the factored head amplifies rounding, which differs between devices."""
    random = np.random.default_rng(seed)
    for _ in range(steps):
        h = random.standard_normal((m, d)).astype(layer.dtype)
        layer.step(there(layer.device, h), random.integers(0, D, m), lr=0.002)


@pytest.mark.parametrize("head", ["windowed", "factored", "dense", "softmax", "hierarchical"])
def test_a_layer_goes_to_a_gpu_and_comes_back(head):
    moved, stayed = (make(head=head, dtype="float64", device="cpu", seed=5) for _ in range(2))
    for turn, device in enumerate(("cuda", "cuda", "cpu", "cuda")):
        assert moved.to(device) is moved and moved.device == device
        for each in (moved, stayed):
            train(each, 30, seed=turn)
        W = stayed.weights()
        assert np.linalg.norm(moved.weights() - W) < 1e-12 * np.linalg.norm(W) and moved.steps == stayed.steps


@pytest.mark.parametrize("head", ["windowed", "factored", "dense", "softmax", "hierarchical"])
def test_a_kept_layer_goes_on_bit_for_bit_on_its_gpu(head, tmp_path):
    layer = make(head=head, seed=5)
    train(layer, 30, seed=1)
    kept = [pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)]
    try:
        layer.save(tmp_path / "layer")
    except ValueError as error:
        assert "layers only" in str(error)  # a build without files
    else:
        kept.append(widehead.OutputLayer.load(tmp_path / "layer", device="cuda"))
        assert widehead.OutputLayer.load(tmp_path / "layer").device == "cpu"
    train(layer, 20, seed=2)
    for other in kept:
        assert other.device == "cuda" and other.steps == 30
        train(other, 20, seed=2)
        assert (other.weights() == layer.weights()).all()


def test_a_training_loop_on_the_gpu_is_that_on_the_cpu():
    """Layers below, a head, an optimizer for each, ready-made and own losses, and a move in the middle."""
    found = []
    for devices in (["cpu"] * 4, ["cuda"] * 4, ["cpu", "cuda", "cpu", "cuda"]):
        torch.manual_seed(0)
        below = nn.Sequential(nn.Linear(7, 16), nn.Tanh()).double()
        model = nn.ModuleDict({"below": below, "head": WideHead(16, D, dtype=torch.float64, init="normal", threads=1)})
        generator, losses = torch.Generator().manual_seed(0), []
        for device in devices:
            model.to(device)
            head = model["head"]
            assert head.weights().device.type == device and head.layer.device == device
            lower, upper = torch.optim.SGD(below.parameters(), lr=0.05), SGD(model, lr=0.3)
            for step in range(10):
                x = torch.randn(m, 7, dtype=torch.float64, generator=generator).to(device)
                t = torch.randint(0, D, (m, 3), generator=generator).to(device)
                t[0, 1:] = -1
                h = model["below"](x)
                if step % 3 == 0:
                    q, s, o = head.statistics(h, t)
                    assert q.device == s.device == o.device == h.device
                    loss = (q + 0.01 * s**2 - 2 * o.sum(1)).mean()
                else:
                    loss = head(h, t)
                loss.backward()
                if step % 3 != 2:  # else accumulated
                    lower.step(), upper.step(), lower.zero_grad()
                losses.append(loss.item())
        found.append((np.array(losses), here(head.weights()), here(below[0].weight.detach())))
        assert head.layer.steps == 28
    for other in found[1:]:
        for truth, value in zip(found[0], other):
            assert np.linalg.norm(value - truth) < 1e-10 * np.linalg.norm(truth)


def test_what_was_recorded_before_a_move_counts_after_it():
    moved, stayed = (WideHead(d, D, dtype=torch.float64, init="normal") for _ in range(2))
    h, t = hidden(dtype=torch.float64).cpu(), torch.from_numpy(TARGETS)
    for head in (moved, stayed):
        head(h, t).backward()
        (head.statistics(h, t)[0].sum() * 0.1).backward()
    late = moved(h, t)
    moved.to("cuda")
    with pytest.raises(RuntimeError, match="W has changed"):
        late.backward()
    for head in (moved, stayed):
        head.step(0.1)
        assert head.layer.steps == 1
    assert torch.allclose(moved.weights().cpu(), stayed.weights(), rtol=1e-12, atol=1e-14)
    moved(h.cuda(), t).backward()
    moved.zero_grad()
    moved.cpu().step(0.1)
    assert moved.layer.steps == 1


def test_state_dicts_are_of_no_device():
    on_gpu, on_cpu = (WideHead(d, D, init="normal", device=device) for device in ("cuda", "cpu"))
    on_gpu(hidden(), TARGETS).backward()
    on_gpu.step(0.1)
    state = on_gpu.state_dict()
    assert all(not each.is_cuda for each in state.values())
    on_cpu.load_state_dict(state)
    assert torch.allclose(on_cpu.weights(), on_gpu.weights().cpu(), atol=1e-6)
    again = WideHead(d, D, init="normal", device="cuda")
    again.load_state_dict({name: value.cuda() for name, value in state.items()})  # map_location may have done that
    assert (again.weights() == on_gpu.weights()).all()
