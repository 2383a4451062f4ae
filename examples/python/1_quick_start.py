# %% [markdown]
# # widehead in five cells
# A million outputs, of which each example names a few. Run it as a script, or cell by cell in an editor that knows `# %%`.

# %% A layer with 1,000,000 outputs on 64 hidden units: W would be 256 MB, and its gradient as much again in every step.
import time

import numpy as np
import scipy.sparse
import widehead

layer = widehead.OutputLayer(outputs=1_000_000, dim=64)
print(layer)

# %% Hidden vectors that a network might have made, and targets as a sparse matrix: 32 examples with 5 targets each.
random = np.random.default_rng(0)
m, K = 32, 5
h = random.standard_normal((m, 64)).astype(np.float32) / 8
columns = random.integers(0, 1_000_000, m * K)
targets = scipy.sparse.csr_matrix((np.ones(m * K, np.float32), columns, np.arange(m + 1) * K), shape=(m, 1_000_000))

# %% Exact steps on all of them, and what each gives to the layers below.
start = time.perf_counter()
for step in range(101):
    loss, grad_h = layer.step(h, targets, lr=0.2)
    if step % 25 == 0:
        print(f"step {step:3d}   loss {loss:8.3f}   ‖∂L/∂h‖ {np.linalg.norm(grad_h):.4f}")
print(f"{(time.perf_counter() - start) / 101 * 1e3:.2f} ms a step")

# %% What it has learnt: the best outputs of the first two examples are their targets.
best, scores = layer.top_k(h[:2], K)
for j in range(2):
    print(f"example {j}: {sorted(best[j].tolist())}, its targets {sorted(targets[j].indices.tolist())}")
    assert set(best[j]) == set(targets[j].indices)

# %% The step is exact: the same steps on an explicit W of 2,000 outputs in float64 end at the same W.
D, d = 2000, 32
small = widehead.OutputLayer(outputs=D, dim=d, dtype="float64")
W = np.zeros((D, d))
for _ in range(200):
    x, t = random.standard_normal((16, d)), random.integers(0, D, 16)
    small.step(x, t, lr=0.005)
    W -= 0.005 * 2 * (x @ W.T - np.eye(D)[t]).T @ x
print(f"largest difference after 200 steps: {abs(small.weights() - W).max():.1e}")
assert abs(small.weights() - W).max() < 1e-12
