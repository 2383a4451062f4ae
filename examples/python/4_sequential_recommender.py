"""A sequential recommender: a GRU over the items a user had, then all items as outputs. WideHead beside a full softmax.

Users walk through a catalogue of 30,000 items along paths that only the order of the last items tells. Both models see the
same data with the same lower layers; what differs is the last layer, and what a step costs.
"""

import time

import torch
from torch import nn
from widehead import losses
from widehead.torch import SGD, WideHead

torch.manual_seed(0)
torch.set_num_threads(1)
items, dim, length, users, batch = 30_000, 48, 6, 6_000, 100

# After item i comes one of two followers; which one is decided by the item before it (odd or even).
active = torch.randperm(items)[:600]
followers = torch.randint(0, 600, (600, 2))
walk = torch.randint(0, 600, (users, length + 1))
for t in range(1, length + 1):
    parity = walk[:, t - 2] % 2 if t > 1 else torch.zeros(users, dtype=torch.long)
    walk[:, t] = followers[walk[:, t - 1], parity]
history, following = active[walk[:, :-1]], active[walk[:, -1]]
held_out = slice(users - 500, users)


class Below(nn.Module):
    """What both models have: embeddings and a GRU."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(items, dim, sparse=True)
        self.gru = nn.GRU(dim, dim, batch_first=True)

    def forward(self, history):
        return self.gru(self.embedding(history))[1][0]


def train(below, loss_of, step, zero_grad, epochs):
    sparse = torch.optim.SparseAdam(below.embedding.parameters(), lr=0.01)
    dense = torch.optim.Adam(below.gru.parameters(), lr=0.01)
    start = time.perf_counter()
    for _ in range(epochs):
        for rows in torch.randperm(users - 500).split(batch):
            sparse.zero_grad(), dense.zero_grad(), zero_grad()
            loss_of(below(history[rows]), following[rows]).backward()
            sparse.step(), dense.step(), step()
    return time.perf_counter() - start


def hit_rate(top_k):
    return float((top_k == following[held_out, None]).any(1).float().mean())


# The exact head: every item that was not chosen is a weak negative, all 30,000 of them, at O(d²) an example.
torch.manual_seed(1)
below = Below()
head = WideHead(dim, items, loss=losses.WeightedSquaredError(unobserved=0.02), threads=1)
sgd = SGD(head, lr=2.0)
epochs = 5
wide_seconds = train(below, head, sgd.step, sgd.zero_grad, epochs)
with torch.no_grad():
    wide = hit_rate(head.top_k(below(history[held_out]), 10)[0])

# The full softmax: logits of all items, O(Dd) an example. One epoch is enough to see.
torch.manual_seed(1)
below = Below()
output = nn.Linear(dim, items, bias=False)
adam = torch.optim.Adam(output.parameters(), lr=0.01)
softmax_epochs = 1
softmax_seconds = train(
    below, lambda h, y: nn.functional.cross_entropy(output(h), y), adam.step, adam.zero_grad, softmax_epochs
)
with torch.no_grad():
    full = hit_rate(output(below(history[held_out])).topk(10).indices)

per_epoch = wide_seconds / epochs, softmax_seconds / softmax_epochs
print(f"WideHead      {per_epoch[0]:6.2f} s an epoch   hit rate @10 after {epochs:2d} epochs: {wide:.3f}")
print(f"full softmax  {per_epoch[1]:6.2f} s an epoch   hit rate @10 after {softmax_epochs:2d} epochs: {full:.3f}")
assert wide > 0.5 and per_epoch[0] < per_epoch[1]
