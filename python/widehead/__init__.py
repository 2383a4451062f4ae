"""Exact training of networks with enormous sparse outputs in O(d²) per step.

OutputLayer is the layer on NumPy arrays, widehead.torch.WideHead the same as a PyTorch module; train_lm, train_labels and
train_items go from files to a model. docs/python.md has the details.
"""

import os as _os

# Threads of OpenMP that wait must not spin for long, or they slow down whatever else wants the cores. The runtime reads
# its variables when it is loaded, so they are set for that moment, unless the user has.
if "OMP_WAIT_POLICY" in _os.environ or "GOMP_SPINCOUNT" in _os.environ:
    from . import _core
else:
    _os.environ["GOMP_SPINCOUNT"] = "3000"
    try:
        from . import _core
    finally:
        del _os.environ["GOMP_SPINCOUNT"]

from . import losses
from ._core import BackendError, FileError, NumericalError, __version__
from ._layer import OutputLayer
from ._train import train_items, train_labels, train_lm
from ._vectors import load_word_vectors, model_vectors, save_word_vectors

__all__ = [
    "BackendError",
    "FileError",
    "NumericalError",
    "OutputLayer",
    "__version__",
    "load_word_vectors",
    "losses",
    "model_vectors",
    "save_word_vectors",
    "train_items",
    "train_labels",
    "train_lm",
]
