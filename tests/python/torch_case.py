"""What the tests of WideHead share: a small head, and the same layer written in PyTorch with an explicit W. They run on every
device: it is PyTorch's default meanwhile, so that the tensors of a test are there, too."""

import pytest
from devices import DEVICES

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from widehead.torch import WideHead

D, d, m = 30, 5, 4


def make(**options):
    device = torch.get_default_device()
    defaults = {"dim": d, "outputs": D, "dtype": torch.float64, "init": "normal", "threads": 1, "device": device}
    return WideHead(**{**defaults, **options})


@pytest.fixture(autouse=True, params=DEVICES)
def device(request):
    torch.set_default_device(request.param)
    torch.manual_seed(0)
    yield request.param
    torch.set_default_device(None)


def hidden(rows=m):
    return torch.randn(rows, d, dtype=torch.float64, requires_grad=True)


def explicit(W, h, targets):
    """q, s, o from W itself."""
    O = h @ W.T
    return (
        (O**2).sum(1),
        O.sum(1),
        O.gather(1, targets if targets.ndim == 2 else targets[:, None]).reshape(targets.shape),
    )


def close(value, truth, limit=1e-12):
    value, truth = (torch.as_tensor(x, dtype=torch.float64) for x in (value, truth))
    assert torch.linalg.norm(value - truth) <= limit * (1 + torch.linalg.norm(truth))


def strange_loss(q, s, o):
    """Of nobody's family portrait: mixes examples, uses everything."""
    return (q * s.tanh()).mean() + o.exp().sum() * (1 + q.sum()).sqrt() + (o * o.roll(1, 0)).sum()


def train(module, steps):
    for _ in range(steps):
        q, s, o = module.statistics(hidden(), torch.randint(0, D, (m,)))
        (q - 2 * o).sum().backward()
        module.step(0.01)
