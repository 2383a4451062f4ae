"""The devices that tests run on: the CPU, and the first GPU where there is one."""

import os

import numpy as np
import pytest
import widehead


def _why_no_gpu():
    try:
        widehead.OutputLayer(1, 1, device="cuda")
        import torch
    except (ValueError, ImportError) as error:
        return str(error)
    return None if torch.cuda.is_available() else "PyTorch sees no GPU"


NO_GPU = _why_no_gpu()
if NO_GPU and os.environ.get("WIDEHEAD_TEST_CUDA"):  # set where there must be one
    raise RuntimeError(f"WIDEHEAD_TEST_CUDA is set, but {NO_GPU}")
needs_gpu = pytest.mark.skipif(NO_GPU is not None, reason=f"no GPU: {NO_GPU}")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]

try:
    import scipy.sparse as sparse
except ImportError:
    sparse = None
needs_scipy = pytest.mark.skipif(sparse is None, reason="SciPy is not installed")


def csr(dense):
    """A CSR matrix, or its parts where SciPy is not installed."""
    if sparse is not None:
        return sparse.csr_matrix(dense)
    indptr = np.concatenate([[0], np.cumsum((dense != 0).sum(1))])
    return indptr, np.nonzero(dense)[1], dense[dense != 0]


def there(device, array):
    """An array of NumPy's, or a tensor with the same values on the GPU."""
    if device == "cpu":
        return array
    import torch

    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def here(array):
    """An array of either kind for NumPy."""
    return array.cpu().numpy() if hasattr(array, "cpu") else array
