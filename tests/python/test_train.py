"""The trainer: options, runs of each job, resuming, progress; word vectors; the console script."""

import inspect
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import train_stub
import widehead
from widehead import _core, _train

PROGRAM = [sys.executable, "-m", "widehead"]
SMALL = {"dim": 16, "threads": 1, "progress": False}


def program(*arguments, **options):
    return subprocess.run([*PROGRAM, *map(str, arguments)], capture_output=True, text=True, **options)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A text and its pairs, labels, items: made by the program, or here."""
    folder = tmp_path_factory.mktemp("data")
    done = program("generate", "text", "--words", 1000, "--tokens", 30000, "--out", folder / "text")
    assert done.returncode == 0, done.stderr
    random = np.random.default_rng(0)
    with open(folder / "labels", "w") as file:
        print("60 20 30", file=file)
        for _ in range(60):
            kind = random.integers(10)
            print(f"{kind},{kind + 10} {kind}:1 {kind + 10}:0.5", file=file)
    with open(folder / "items", "w") as file:
        for user in range(40):
            print(user, *(f"item{3 * (user % 5) + k}" for k in range(6)), file=file)
    return folder


def train_lm(files, out, **options):
    return widehead.train_lm(corpus=files / "text", out=out, **{**SMALL, "min_count": 1, "hidden": [16], **options})


# ── the options ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("job", ["lm", "labels", "items"])
def test_the_options_are_those_of_the_program(job):
    function = getattr(widehead, f"train_{job}")
    parameters = inspect.signature(function).parameters
    help_text = program("train", job, "--help").stdout
    for name in parameters:
        if name not in ("progress",):
            assert f"--{name.rstrip('_').replace('_', '-')}" in help_text
        assert name in function.__doc__
    for flag in {word.strip(",.:;") for word in help_text.split() if word.startswith("--") and len(word) > 2}:
        name = flag[2:].split("=")[0].replace("-", "_")
        assert name in ("help", "resume", "example") or name in parameters or f"{name}_" in parameters


def test_the_stub_of_the_trainer_is_that_of_the_table():
    assert train_stub.STUB.read_text() == train_stub.stub(), "run tests/python/train_stub.py"


def test_the_stub_of_the_extension_names_all_of_it():
    text = train_stub.STUB.with_name("_core.pyi").read_text()
    for name in dir(_core):
        assert name.startswith("__") or f" {name}" in text or f"{name}:" in text, name
    for name in dir(_core.Layer32):
        assert name.startswith("__") or f"def {name}(" in text, name


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"dim": 0}, ValueError, "--dim 0: expected 1 … 65536"),
        ({"loss": "hinge"}, ValueError, r"--loss hinge: expected squared \| weighted"),
        ({"dim": "wide"}, ValueError, "dim = 'wide': expected int"),
        ({"hidden": ["a"]}, ValueError, "hidden = "),
        ({"width": 3}, TypeError, "train lm has no option 'width'"),
        ({"resume": True, "overwrite": True}, ValueError, "--resume and --overwrite exclude each other"),
        ({"corpus": "/no/such/text"}, FileNotFoundError, "/no/such/text"),
        ({"config": "/no/such/config"}, OSError, "/no/such/config"),
    ],
)
def test_bad_options_are_named(files, tmp_path, options, error, text):
    with pytest.raises(error, match=text):
        widehead.train_lm(**{"corpus": files / "text", "out": tmp_path / "model", **SMALL, **options})
    assert not (tmp_path / "model").exists()


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_language_model_and_its_vectors(files, tmp_path):
    events = []
    result = train_lm(files, tmp_path / "model", progress=lambda event, payload: events.append((event, payload)))
    assert result["complete"] and result["share"] == 1 and result["model"] == str(tmp_path / "model")
    assert result["figures"]["top10"] > 0.1  # of 1000 words, 0.01 by chance
    assert all(isinstance(value, (int, float, bool, str, dict)) for value in result.values())
    assert {"note", "training", "evaluated"} <= {event for event, _ in events}
    assert events[-1][0] == "evaluated" and events[-1][1]["figures"] == result["figures"]
    with pytest.raises(ValueError, match="there is a model in this folder"):
        train_lm(files, tmp_path / "model")

    words, vectors = widehead.model_vectors(tmp_path / "model")
    assert vectors.dtype == np.float32 and vectors.shape == (len(words), 16)
    assert widehead.model_vectors(tmp_path / "model", kind="input")[1].shape == (len(words), 100)
    with pytest.raises(ValueError, match="kind 'both' is unknown"):
        widehead.model_vectors(tmp_path / "model", kind="both")
    for binary in (False, True):
        path = tmp_path / f"vectors{binary}"
        widehead.save_word_vectors(path, words, vectors, binary=binary)
        read, again = widehead.load_word_vectors(path, binary=binary)
        assert read == words and (again == vectors).all()
        assert widehead.load_word_vectors(path, binary=binary, limit=3)[0] == words[:3]
    exported = tmp_path / "exported"
    assert program("export", tmp_path / "model", "--out", exported).returncode == 0
    assert exported.read_bytes() == (tmp_path / "vectorsFalse").read_bytes()


def test_gensim_opens_the_vectors(tmp_path):
    KeyedVectors = pytest.importorskip("gensim.models", reason="gensim is not installed").KeyedVectors
    words = ["king", "queen", "Zürich", "naïve_word"]
    vectors = np.random.default_rng(0).standard_normal((4, 7)).astype(np.float32)
    for binary in (False, True):
        path = tmp_path / f"vectors{binary}"
        widehead.save_word_vectors(path, words, vectors, binary=binary)
        loaded = KeyedVectors.load_word2vec_format(str(path), binary=binary)
        assert loaded.index_to_key == words and (loaded.vectors == vectors).all()
        assert loaded.most_similar("king", topn=3)
        loaded.save_word2vec_format(str(path) + "2", binary=binary)
        read, again = widehead.load_word_vectors(str(path) + "2", binary=binary)
        assert read == words and np.allclose(again, vectors, atol=1e-6)


def test_labels_and_items(files, tmp_path):
    result = widehead.train_labels(
        train=files / "labels", valid=files / "labels", out=tmp_path / "tags", epochs=40, **SMALL
    )
    assert result["figures"]["P@1"] > 0.9
    names, vectors = widehead.model_vectors(tmp_path / "tags")
    assert names == [str(k) for k in range(30)] and vectors.shape == (30, 16)
    with pytest.raises(ValueError, match="labels"):
        widehead.model_vectors(tmp_path / "tags", kind="input")
    result = widehead.train_items(train=files / "items", out=tmp_path / "shop", epochs=20, **SMALL)
    assert result["complete"] and "item0" in widehead.model_vectors(tmp_path / "shop")[0]


def test_config_files_and_tuples(files, tmp_path):
    (tmp_path / "config.toml").write_text('loss = "taylor"\nbatch = 64\n')
    train_lm(files, tmp_path / "model", config=tmp_path / "config.toml", hidden=(8,), lambda_=0.05)
    stored = (tmp_path / "model" / "config.toml").read_text()
    assert "taylor" in stored and "batch = 64" in stored and "lambda = 0.05" in stored


def test_a_run_that_raises_is_saved_and_goes_on_bit_for_bit(files, tmp_path):
    whole = train_lm(files, tmp_path / "whole", epochs=3)

    def give_up(event, payload):
        if event == "training":  # after the first step
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        train_lm(files, tmp_path / "parts", epochs=3, progress=give_up)
    result = train_lm(files, tmp_path / "parts", epochs=3, resume=True)
    assert result["complete"] and result["figures"] == whole["figures"]
    assert (widehead.model_vectors(tmp_path / "parts")[1] == widehead.model_vectors(tmp_path / "whole")[1]).all()


@pytest.fixture
def interruptible():
    """Ctrl-C as at a terminal: a process that a shell starts in the background is born deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_signals_have_a_stack_of_their_own():
    """oneDNN's kernels keep their workspace on the heap, where the stack pointer says. pytest's faulthandler makes such a
    stack, too, so this is asked of another process."""
    ask = """if True:
        import ctypes, sys

        class Stack(ctypes.Structure):
            _fields_ = [("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("bytes", ctypes.c_size_t)]

        def has_stack():
            stack = Stack()
            assert ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack)) == 0
            return stack.flags & 2 == 0 and stack.bytes >= 16384  # not SS_DISABLE

        before = has_stack()
        import widehead
        sys.exit(f"{before} {has_stack()}")
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONFAULTHANDLER"}
    ended = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, env=environment)
    assert ended.stderr.strip() == "False True"


def test_ctrl_c_saves_and_raises(files, tmp_path, interruptible):
    timers = []

    def interrupt(event, payload):
        if event == "training" and not timers:
            timers.append(threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)))
            timers[0].start()

    with pytest.raises(KeyboardInterrupt):
        train_lm(files, tmp_path / "model", epochs=100000, progress=interrupt)
    assert 0 < train_lm_share(tmp_path / "model") < 1


def train_lm_share(folder):
    import json

    return json.loads((folder / "manifest.json").read_text())["info"]["share"]


def test_progress_by_tqdm(files, tmp_path, capsys):
    pytest.importorskip("tqdm", reason="tqdm is not installed")
    train_lm(files, tmp_path / "model", progress=None)
    shown = capsys.readouterr()
    assert "training" in shown.err and "loss" in shown.err and "epoch 1" in shown.out


def test_no_progress_without_tqdm(files, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(_train, "_tqdm", None)
    train_lm(files, tmp_path / "model", progress=None)
    assert capsys.readouterr() == ("", "")


# ── the program ──────────────────────────────────────────────────────────────────────────────────


def test_the_console_script_is_the_program(tmp_path):
    version = program("--version")
    assert version.returncode == 0 and widehead.__version__ in version.stdout
    assert program("train").returncode == 2
    real = Path(widehead.__file__).parent / "bin" / "widehead"
    assert program("manual").stdout == subprocess.run([real, "manual"], capture_output=True, text=True).stdout
