"""The wheel that ./run test has built, in a fresh virtual environment: README's quick start, word for word."""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2]
WHEEL = os.environ.get("WIDEHEAD_TEST_WHEEL")


def blocks_of_readme():
    section = SOURCE.joinpath("README.md").read_text().split("\n## Ten minutes: Python\n")[1].split("\n## ")[0]
    return re.findall(r"```(\w*)\n(.*?)```", section, re.DOTALL)


def check_quick_start(python, folder, environment):
    """The first program of README's Python section prints what README says it prints."""
    code = next(text for kind, text in blocks_of_readme() if kind == "python")
    (shown,) = (text for _, text in blocks_of_readme() if text.startswith("$ python quick_start.py\n"))
    (folder / "quick_start.py").write_text(code)
    done = subprocess.run([python, "quick_start.py"], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown.split("\n", 1)[1]


def test_the_quick_start_of_the_readme(tmp_path):
    check_quick_start(sys.executable, tmp_path, os.environ)


def test_the_pytorch_model_of_the_readme():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    code = [text for kind, text in blocks_of_readme() if kind == "python"][1]
    names = {}
    exec(code, names)
    assert names["loss"].item() < 0.1 and names["head"].layer.steps == 100


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """The Python of a new virtual environment with the wheel, and nothing but what pip brings along."""
    if not WHEEL:
        pytest.skip("WIDEHEAD_TEST_WHEEL names no wheel")
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=True)
    done = subprocess.run(
        [folder / "bin" / "python", "-m", "pip", "install", "-q", WHEEL, "scipy"], capture_output=True, text=True
    )
    if done.returncode != 0 and "No matching distribution" in done.stderr:
        pytest.skip("pip finds no NumPy and SciPy here")
    assert done.returncode == 0, done.stderr
    return folder


def test_the_quick_start_in_a_fresh_environment(fresh, tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    check_quick_start(fresh / "bin" / "python", tmp_path, environment)


def test_the_console_script_of_a_fresh_environment(fresh, tmp_path):
    done = subprocess.run([fresh / "bin" / "widehead", "info"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "GFLOP/s" in done.stdout


def test_the_wheel_carries_its_libraries(fresh, tmp_path):
    """Whatever is loaded is in the package, but for the C and C++ of the system."""
    script = """
import widehead, re, pathlib
package = pathlib.Path(widehead.__file__).parent
loaded = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
own = "openblas|dnnl|fmt|gomp|gfortran|quadmath|lzma|zstd|libz|xxhash|toml"
for path in sorted(loaded):
    name = pathlib.Path(path).name
    if re.search(own, name) and "numpy" not in path and "lib-dynload" not in path and not path.startswith(str(package)):
        print(path)
"""
    done = subprocess.run([fresh / "bin" / "python", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    program = fresh.glob("lib/python*/site-packages/widehead/bin/widehead")
    listed = subprocess.run(["ldd", next(program)], capture_output=True, text=True).stdout
    assert "not found" not in listed
    for name in ("libopenblas", "libfmt", "libgomp"):
        (line,) = (line for line in listed.splitlines() if name in line)
        assert str(fresh) in line, line
