"""OutputLayer: what it takes, what it refuses and how, keeping it, and other threads."""

import copy
import pickle
import threading
import time

import numpy as np
import pytest
import scipy.sparse
import widehead
from widehead import _core, losses

D, d, m = 50, 6, 4


def make(**options):
    return widehead.OutputLayer(**{"outputs": D, "dim": d, "init": "normal", "threads": 1, **options})


@pytest.fixture
def h():
    return np.random.default_rng(1).standard_normal((m, d)).astype(np.float32)


TARGETS = np.array([3, 7, 7, 49])


# ── arguments ────────────────────────────────────────────────────────────────────────────────────


def test_the_signature_is_that_of_the_documentation():
    import inspect

    parameters = inspect.signature(widehead.OutputLayer).parameters
    positional = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == [
        "outputs", "dim", "head", "loss", "dtype", "device", "init", "weight_decay", "rows_file", "seed", "threads",
    ]  # fmt: skip
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    assert defaults["head"] == "windowed" and defaults["loss"] == "squared" and defaults["dtype"] == "float32"
    assert defaults["device"] == "cpu" and defaults["init"] is None and defaults["threads"] is None


def test_targets_of_every_kind_are_the_same(h):
    ones = np.ones(m, np.float32)
    csr = scipy.sparse.csr_matrix((ones, TARGETS, np.arange(m + 1)), shape=(m, D))
    wide = scipy.sparse.csr_array((ones.astype(np.float64), TARGETS.astype(np.int64), np.arange(m + 1)), shape=(m, D))
    kinds = [
        TARGETS,
        TARGETS.astype(np.int32),
        TARGETS.astype(np.uint8),
        list(TARGETS),
        csr,
        wide,
        (np.arange(m + 1), TARGETS, None),
        (np.arange(m + 1, dtype=np.int32), TARGETS.astype(np.int32), ones),
        (np.arange(m + 1), TARGETS, ones.astype(bool)),
    ]
    results = []
    for targets in kinds:
        layer = make()
        results.append((*layer.step(h, targets, lr=0.1), layer.weights()))
    for L, grad_h, W in results[1:]:
        assert L == results[0][0] and (grad_h == results[0][1]).all() and (W == results[0][2]).all()


def test_h_of_other_layouts_and_types_is_the_same(h):
    truth = make().step(h, TARGETS, lr=0.1)
    wide = np.zeros((m, 2 * d), np.float32)
    wide[:, :d] = h
    for same in (np.asfortranarray(h), h.astype(np.float64), wide[:, :d], h[::-1][::-1], h.tolist()):
        L, grad_h = make().step(same, TARGETS, lr=0.1)
        assert L == truth[0] and (grad_h == truth[1]).all()


def test_nothing_is_copied_that_need_not_be(h):
    assert widehead._arrays.to_table(h, h.dtype, "h") is h
    part = np.zeros((m, 9), np.float32)[:, :d]
    assert widehead._arrays.to_table(part, h.dtype, "h") is part
    values = np.ones(3, np.float32)
    assert widehead._arrays.to_list(values, values.dtype, "values") is values
    indices = np.array([1, 2, 3], np.int32)
    assert np.shares_memory(widehead._arrays.to_integers(indices, "indices"), indices)
    targets = widehead._arrays.to_targets((np.array([0, 3]), indices, values), D, h.dtype)
    indices[0] = D  # it is our memory that the layer reads, and it looks before every step
    with pytest.raises(ValueError, match=rf"targets: indices\[0\] = {D}, but D = {D}"):
        make().step(h[:1], targets, lr=0.1)


def test_dlpack_arrays_are_taken(h):
    class Foreign:  # no buffer, no __array__
        def __dlpack__(self, **options):
            return h.__dlpack__(**options)

        def __dlpack_device__(self):
            return h.__dlpack_device__()

    assert make().step(Foreign(), TARGETS, lr=0.1)[0] == make().step(h, TARGETS, lr=0.1)[0]


def test_arrays_of_another_device_are_refused(h):
    class OnCuda:
        def __dlpack_device__(self):
            return (2, 0)

    with pytest.raises(ValueError, match="h: the array is on another device, but the layer is on cpu"):
        make().step(OnCuda(), TARGETS, lr=0.1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"outputs": 0}, r"layer: outputs \(D\) = 0, but it must be 1 … 2147483647"),
        ({"dim": -1}, r"layer: dim \(d\) = -1"),
        ({"head": "tall"}, "head 'tall' is unknown; there are: windowed, factored, dense"),
        ({"loss": "hinge"}, "loss 'hinge' is unknown; there are: squared, weighted"),
        ({"loss": losses.ZLoss(scale=-1)}, "scale"),
        ({"head": "softmax", "loss": "taylor"}, "head 'softmax' minimises the cross-entropy"),
        ({"dtype": "float16"}, "dtype 'float16' is unknown; there are: float32, float64"),
        ({"dtype": "wide"}, "dtype 'wide' is unknown"),
        ({"device": "cuda"}, "device 'cuda': this build has no CUDA"),
        ({"init": "random"}, "init 'random' is unknown; there are: zero, normal, or an array"),
        ({"init": "given"}, "init 'given' is unknown"),
        ({"init": np.zeros((D, d + 1))}, r"init: W0 has shape \(50, 7\), but D = 50 and d = 6"),
        ({"init": np.full((D, d), np.nan)}, r"layer: initial W\(0, 0\) = nan is not finite"),
        ({"weight_decay": -1}, "layer: weight_decay = -1, but it must be finite and not negative"),
        ({"rows_file": "x", "head": "dense"}, "rows_file: only the windowed head has one, not dense"),
    ],
)
def test_options_that_make_no_sense_are_named(options, text):
    with pytest.raises(ValueError, match=text):
        make(**options)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"h": np.zeros((m, d + 1))}, f"step: H is {d + 1} x {m}"),
        ({"h": np.zeros(d)}, r"h: shape \(6,\), but two dimensions are expected"),
        ({"h": np.full((m, d), np.inf)}, r"step: H\(0, 0\) = inf is not finite"),
        ({"h": np.array([["a"]])}, "h: dtype <U1, but numbers are expected"),
        ({"targets": [0, 1, 2, D]}, rf"targets: indices\[3\] = {D}, but D = {D}"),
        ({"targets": [0, 1, -2, 3]}, r"targets: indices\[2\] = -2"),
        ({"targets": np.array([1, 2])}, "step: 2 targets for 4 examples"),
        ({"targets": np.zeros((m, D))}, "targets: float64 of shape"),
        ({"targets": np.array([0.5] * m)}, r"targets: float64 of shape \(4,\)"),
        ({"targets": scipy.sparse.csr_matrix((m, D + 1))}, f"targets: targets are for D = {D + 1}, but the layer has"),
        ({"targets": scipy.sparse.csc_matrix((m, D))}, "targets: a sparse matrix in csc format, but csr is expected"),
        ({"targets": scipy.sparse.coo_matrix((m, D))}, "targets: a sparse matrix in coo format"),
        ({"targets": (np.array([0, 1]),)}, "targets: a tuple of 1"),
        ({"targets": (np.array([1, 2]), np.array([1, 2]), None)}, r"targets: offsets\[0\] = 1"),
        ({"targets": (np.array([0, 0, 0, 0, 1]), [1], [np.nan])}, r"targets: values\[0\] = nan is not finite"),
        ({"lr": -1.0}, "step: eta = -1, but it must be finite and not negative"),
        ({"lr": float("nan")}, "step: eta = nan"),
        ({"weights": [1, 1, 1]}, "targets: 3 weights for 4 examples"),
        ({"weights": [1, 1, 1, -1]}, r"targets: weights\[3\] = -1"),
    ],
)
def test_bad_steps_are_refused_and_change_nothing(h, change, text):
    layer = make()
    layer.step(h, TARGETS, lr=0.1)
    W = layer.weights()
    with pytest.raises(ValueError, match=text):
        layer.step(**{"h": h, "targets": TARGETS, "lr": 0.1, **change})
    assert (layer.weights() == W).all() and layer.steps == 1


def test_errors_are_of_pythons_kinds_with_the_text_of_cpp(h, tmp_path):
    layer = make(head="factored")
    with pytest.raises(ArithmeticError, match="the update overflows .* the step was not taken"):
        for _ in range(50):
            layer.step(h * 1e9, TARGETS, lr=1e9)
    assert issubclass(widehead.NumericalError, ArithmeticError)
    with pytest.raises(OSError, match="nothing") as caught:
        widehead.OutputLayer.load(tmp_path / "nothing")
    assert isinstance(caught.value, FileNotFoundError)
    (tmp_path / "text").write_text("no safetensors")
    with pytest.raises(OSError, match="text"):
        widehead.OutputLayer.load(tmp_path / "text")
    with pytest.raises(OSError, match="no/such/folder"):
        make().save("/no/such/folder/layer")
    with pytest.raises(ValueError, match="log_prob: loss squared has no probabilities"):
        make().log_prob(h, TARGETS)
    with pytest.raises(ValueError, match="top_k: k = 51, but it must be 1 … D = 50"):
        make().top_k(h, 51)
    with pytest.raises(ValueError, match=r"rows\[1\] = -1, but D = 50"):
        make().weights([0, -1])
    with pytest.raises(ValueError, match="loss own: computed outside"):
        make(loss=losses.Own()).step(h, TARGETS, lr=0.1)
    with pytest.raises(ValueError, match="no statistics"):
        make(head="softmax").statistics(h, TARGETS)
    with pytest.raises(ValueError, match="derivatives by q"):
        make(loss=losses.Own()).update(h, TARGETS, np.ones(3), None, np.ones(4), 0.1)
    with pytest.raises(ArithmeticError, match="∂L/∂q = nan"):
        make(loss=losses.Own()).update(h, TARGETS, np.full(4, np.nan), None, np.ones(4), 0.1)
    with pytest.raises(ValueError, match="declared not to use the sum"):
        make(loss=losses.Own(uses_sum=False)).update(h, TARGETS, np.ones(4), np.ones(4), np.ones(4), 0.1)


def test_defaults_of_the_losses_are_those_of_cpp():
    import dataclasses

    assert set(_core.LOSSES) | {"own"} == {each.name for each in losses._CLASSES}
    for each in losses._CLASSES:
        if each is not losses.Own:
            assert dataclasses.asdict(each()) == _core.default_parameters(each.name)


def test_arrays_that_somebody_holds_are_not_used_again(h):
    layer = make()
    held = [layer.step(h, TARGETS, lr=0.1)[1] for _ in range(10)]
    copies = [grad_h.copy() for grad_h in held]
    part = layer.step(h, TARGETS, lr=0.1)[1][1:]  # a view
    part_copy = part.copy()
    table = memoryview(layer.step(h, TARGETS, lr=0.1)[1])
    table_copy = table.tobytes()
    for _ in range(10):
        layer.step(h, TARGETS, lr=0.1)
    assert all((a == b).all() for a, b in zip(held, copies)) and len({a.ctypes.data for a in held}) == 10
    assert (part == part_copy).all() and table.tobytes() == table_copy
    del held, part, table
    assert len({layer.step(h, TARGETS, lr=0.1)[1].ctypes.data for _ in range(10)}) < 10


# ── keeping it ───────────────────────────────────────────────────────────────────────────────────

HEADS = ["windowed", "factored", "dense", "softmax", "hierarchical", "sampled", "reference"]


def train(layer, steps, seed):
    random = np.random.default_rng(seed)
    for _ in range(steps):
        layer.step(random.standard_normal((m, d)), random.integers(0, D, m), lr=0.02)


@pytest.mark.parametrize("init", ["zero", "normal", "array"])
@pytest.mark.parametrize("head", HEADS)
def test_a_kept_layer_goes_on_bit_for_bit(head, init, tmp_path):
    W0 = np.random.default_rng(2).standard_normal((D, d)) if init == "array" else init
    layer = make(head=head, init=W0, dtype="float64", seed=5)
    train(layer, 30, seed=1)
    layer.save(tmp_path / "layer")
    kept = {
        "file": widehead.OutputLayer.load(tmp_path / "layer", threads=1),
        "pickle": pickle.loads(pickle.dumps(layer)),
        "deepcopy": copy.deepcopy(layer),
    }
    train(layer, 20, seed=2)
    for how, other in kept.items():
        assert other.steps == 30, how
        train(other, 20, seed=2)
        assert (other.weights() == layer.weights()).all(), how
        assert other.loss == layer.loss and other.head == head and repr(other) == repr(layer)


def test_a_state_that_does_not_fit_changes_nothing():
    layer = make()
    train(layer, 5, seed=1)
    before, W = layer.state(), layer.weights()
    for spoil in (
        lambda s: s.pop("high"),
        lambda s: s.update(high=s["high"].astype(np.float64)),
        lambda s: s.update(high=s["high"][:-1]),
        lambda s: s.update(more=np.zeros(1)),
        lambda s: s.update({"rows.V": s["rows.V"][:, ::-1]}),
        lambda s: s.update({"timeline.now": np.array(9, np.uint32)}),
    ):
        state = dict(before)
        spoil(state)
        with pytest.raises(OSError, match="state"):
            layer.load_state(state)
        assert (layer.weights() == W).all()
    layer.load_state(before)
    assert (layer.weights() == W).all()


def test_rows_in_a_file(tmp_path):
    layer, other = make(rows_file=tmp_path / "rows"), make()
    for each in (layer, other):
        train(each, 20, seed=1)
    assert (layer.weights() == other.weights()).all()
    assert (tmp_path / "rows").stat().st_size == D * d * 4
    layer.save(tmp_path / "layer")
    with pytest.raises(OSError, match="rows"):
        widehead.OutputLayer.load(tmp_path / "layer", rows_file=tmp_path / "rows")  # it exists
    loaded = widehead.OutputLayer.load(tmp_path / "layer", rows_file=tmp_path / "more")
    assert (loaded.weights() == other.weights()).all()
    with pytest.raises(ValueError, match="rows_file"):
        layer.load_state(other.state())


def test_a_hundred_million_outputs_cost_what_is_touched():
    layer = widehead.OutputLayer(outputs=100_000_000, dim=d, threads=1)
    L, _ = layer.step(np.ones((1, d)), np.array([99_999_999]), lr=0.01)
    assert L == 1
    assert np.allclose(layer.weights([99_999_999]), 0.02) and (layer.weights([0]) == 0).all()


# ── other threads ────────────────────────────────────────────────────────────────────────────────


def test_other_threads_run_while_a_layer_computes():
    layer = widehead.OutputLayer(outputs=20000, dim=64, head="dense", init="normal", threads=1)
    h, targets = np.random.default_rng(0).standard_normal((64, 64)), np.arange(64)
    start = time.perf_counter()
    for _ in range(4):
        layer.evaluate(h, targets)
    alone = time.perf_counter() - start
    ticks, running = 0, True

    def tick():
        nonlocal ticks
        while running:
            ticks += 1
            time.sleep(alone / 100)

    thread = threading.Thread(target=tick)
    thread.start()
    before = ticks
    for _ in range(4):
        layer.evaluate(h, targets)
    during, running = ticks - before, False
    thread.join()
    assert during > 12, "the GIL was held: with it, a thread gets a turn between calls only"


def test_threads_that_share_a_layer_take_turns():
    layer = make(dtype="float64", init="zero")
    random = np.random.default_rng(3)
    work = [[(random.standard_normal((m, d)), random.integers(0, D, m)) for _ in range(50)] for _ in range(4)]

    def run(batches):
        for h, targets in batches:
            layer.step(h, targets, lr=1e-3)
            layer.scores(h, [1, 2])

    threads = [threading.Thread(target=run, args=(batches,)) for batches in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert layer.steps == 200
    W = layer.weights()
    assert np.isfinite(W).all() and np.linalg.norm(layer.gram() - W.T @ W) < 1e-12 * np.linalg.norm(W) ** 2
