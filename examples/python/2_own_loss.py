"""A loss of your own in three lines: any function of ‖o‖², Σo and the outputs at the targets trains W exactly."""

import torch
from widehead.torch import WideHead

torch.manual_seed(0)
D, d, m = 50_000, 32, 24
head = WideHead(dim=d, outputs=D)
h, targets = torch.randn(m, d), torch.randint(0, D, (m,))


# The target should score 1 or more, and the energy of all outputs is charged by its logarithm: in nobody's catalogue.
# Explicitly it would cost O(Dd) an example, here it is O(d²).
def loss(h, targets):
    q, s, o = head.statistics(h, targets)
    return (torch.relu(1 - o) ** 2 + 0.01 * torch.log(1 + q)).mean()


history = []
for step in range(201):
    L = loss(h, targets)
    L.backward()
    head.step(lr=0.2)
    history.append(L.item())
    if step % 40 == 0:
        print(f"step {step:3d}   loss {history[-1]:.4f}")

with torch.no_grad():
    q, _, o = head.statistics(h, targets)
print(f"outputs at the targets: mean {o.mean():.3f}; share of the energy that is theirs: {(o**2 / q).mean():.3f}")
assert history[-1] < 0.1 * history[0] and o.mean() > 0.9
