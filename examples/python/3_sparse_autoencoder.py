"""An autoencoder of sparse vectors: 20,000 inputs, 20,000 outputs, and neither end costs O(D).

The encoder adds up the rows of the inputs that are there (nn.EmbeddingBag); the decoder is a WideHead with the squared error
on all outputs, the zeros included. Documents are made of topics: what must be found are those.
"""

import numpy as np
import scipy.sparse
import torch
from torch import nn
from widehead.torch import SGD, WideHead

torch.manual_seed(0)
torch.set_num_threads(1)
random = np.random.default_rng(0)
D, d, topics, documents, words = 20_000, 24, 20, 4_000, 12

# Each topic has 200 words of its own; a document draws its words from one or two topics.
vocabulary = random.permutation(D)[: topics * 200].reshape(topics, 200)
rows = []
for _ in range(documents):
    mix = random.choice(topics, random.integers(1, 3), replace=False)
    rows.append(np.unique(vocabulary[random.choice(mix, words), random.integers(0, 200, words)]))
indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
X = scipy.sparse.csr_matrix((np.ones(indptr[-1], np.float32), np.concatenate(rows), indptr), shape=(documents, D))

encoder = nn.EmbeddingBag(D, d, mode="mean", sparse=True)
nn.init.normal_(encoder.weight, std=0.5)
decoder = WideHead(d, D, threads=1)
below, above = torch.optim.SparseAdam(encoder.parameters(), lr=0.05), SGD(decoder, lr=0.3)


def encode(batch):
    return torch.tanh(encoder(torch.from_numpy(batch.indices).long(), torch.from_numpy(batch.indptr[:-1]).long()))


def residual(batch):
    """‖x − x̂‖² as a share of ‖x‖²: 1 for a decoder that says nothing."""
    with torch.no_grad():
        return float(decoder(encode(batch), batch)) * batch.shape[0] / batch.nnz


train, test = X[:3500], X[3500:]
print(f"epoch 0   unexplained {residual(test):.4f}")
for epoch in range(4):
    order = random.permutation(train.shape[0])
    for start in range(0, len(order), 100):
        batch = train[order[start : start + 100]]
        below.zero_grad(), above.zero_grad()
        loss = decoder(encode(batch), batch)
        loss.backward()
        below.step(), above.step()
    print(f"epoch {epoch + 1}   unexplained {residual(test):.4f}")

# What is left is the choice among a topic's 200 words, which nothing can know; the topics are found: a document's best ten
# outputs are words of its own topics.
topic_of = np.full(D, -1)
topic_of[vocabulary] = np.arange(topics)[:, None]
best, _ = decoder.top_k(encode(test), 10)
hits = [np.isin(topic_of[best[j]], topic_of[test[j].indices]).mean() for j in range(test.shape[0])]
print(f"of the ten best outputs, {np.mean(hits):.1%} are of the document's topics (by chance {1.5 / topics * 0.2:.1%})")
assert np.mean(hits) > 0.8
