#include "manual_notes.h"

#include <algorithm>
#include <array>
#include <utility>

namespace widehead::cli {
namespace {

constexpr auto notes = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"widehead",
     R"md(A *head* is an output layer by name: `windowed` (the default), `factored` (the paper), `dense` (explicit, O(Dd)), `reference` (the paper's text in plain loops, `f64` only), and others that `--help` lists.
Letters are the paper's: D outputs, d hidden units, m examples in a minibatch, K targets per example. λ₁ = 2η‖H‖₂² gives the learning rate η in a unit that means the same for every model;
SGD itself is stable below 2.

Output shown below is from real runs on two cores of an AMD EPYC that were shared with other work; yours will differ in its times.

**Exit codes**: 0 done; 1 failed: a file is missing or not what it should be, a head stopped or missed its `--tolerance`, a library failed; 2 wrong usage; 130 a training run ended by Ctrl-C, saved. Results go to stdout; progress and messages, one line `widehead: …`, to stderr.

**Threads**: `--threads 0`, the default, is one per core. Threads that wait sleep after some 10 µs, so that a busy machine does not stall the program; `OMP_WAIT_POLICY` and `GOMP_SPINCOUNT` are respected where set. In a program of your own, set `OMP_WAIT_POLICY=passive` before it starts where it shares its cores.

**Devices**: `--device` is where a command computes, the CPU unless told, also with a model that was trained on a GPU: a model can be used on either. A name that is no device's is wrong usage; a GPU that is not there, or a program built without CUDA, is a failure. `--tf32` is for GPUs ([gpu.md](gpu.md)).)md"},
    {"widehead train lm",
     R"md(Words are counted, the corpus is kept as ids in the model's folder while the run lasts, and the end of it is held out. The same command with `--resume` goes on where a run was stopped.

```
$ widehead generate text --out text.txt --pairs pairs.txt --words 20000 --tokens 1000000
$ widehead train lm --corpus text.txt --combine mean --activation tanh --dim 100 --hidden 100 --epochs 2 --out model
…
after epoch 2: examples 1995  loss 0.98748  top1 0.068672  top10 0.28471  mrr 0.13765
1982356 examples in 0:31: 62976 examples/s, 44% of the time in the head, 0.3% waiting for data
held out: examples 1995  loss 0.98748  top1 0.068672  top10 0.28471  mrr 0.13765
the model is in model
```)md"},
    {"widehead eval",
     R"md(Spearman's ρ is taken over the pairs whose words the model knows; *input* are the embeddings, *output* the rows of W. Figures that do not exist, such as ρ of a single pair, are `-`, in JSON `null`.

```
$ widehead eval model --similarity pairs.txt
similarity                       vectors    found   missing  Spearman
pairs.txt                          input     2669       331    0.1296
pairs.txt                         output     2669       331    0.6870
```

PSP@k weighs labels by how often the training data have them, with A = 0.55 and B = 1.5. Recall@k divides by the number of a user's held-out items.)md"},
    {"widehead predict", R"md(Input is read and answered in minibatches of 256 lines.

```
$ echo 'the birdb1 of' | widehead predict model
the:0.071904 of:0.046004 birdd1:0.039674 birde1:0.038259 and:0.027934
```)md"},
    {"widehead neighbours",
     R"md(A name that is an output's stands for it, whatever characters it holds; anything else is read as words joined by `+` and `-` between spaces. The words of a question are not among its answers.

```
$ widehead neighbours model birdb1 --top-k 5
birdb1
  0.9849  birdc1
  0.9820  birdc2
  0.9790  birdb2
  0.9744  birdc3
  0.9709  birdb3
```)md"},
    {"widehead info", R"md(```
$ widehead info --threads 1
widehead 0.1.0
  cores            2
  float products   oneDNN 2.6.3
  double, LAPACK   OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH NO_AFFINITY Zen MAX_THREADS=64
  BLAS kernels     Zen
  threads          OpenMP's, one vendor call each
  GEMM f32 on 1    111 GFLOP/s (900 x 128 x 300)
  GEMM f64 on 1    51 GFLOP/s (900 x 128 x 300)
```

The product measured is the largest of a factored step at d = 300, m = 128. If OpenBLAS runs on kernels older than the CPU, the program moves it to better ones; where it cannot, it warns and names
the variable to set.)md"},
    {"widehead verify",
     R"md(A head runs beside the dense layer in float64 on the same minibatches, once for every combination of the lists. Reported are normwise relative differences after the last step, and what the head tells of its state
(names: [algorithm.md](algorithm.md)).

Losses and their parameters: [losses.md](losses.md). λ₁ = 2ηa‖H‖₂² takes a = w₀ for `weighted` and a = 1 for all others: for the losses that are not quadratic it is just a learning rate.

```
$ widehead verify --lambda 0.2
windowed (f32) beside dense (f64): squared, D = 2000, d = 100, m = 32, K = 1, relu, zero, λ₁ = 0.2, 1000 steps
  relative difference   W 3.65e-07   Q 3.24e-07   w̄ 5.14e-07   ∇H 6.47e-07   loss 1.96e-08
  loss                  32.0000 → 24.4410
  steps                 1000
  absorbs               246
  flips                 4
  deflated              121
  close_seconds         0.0309228
  window_fill           0
  panel_rank            21
  blocks_alive          4
  blocks_made           4
  merges                0
  rows_caught_up        13080
  rows_moved            0
  upkeep_flops          9.72835e+08
  timeline_bytes        473568
  rows_read             48517
  rows_written          34797
  sigma_min             0.306347
  sigma_max             1.0002
  Q_drift               6.44007e-07
```

The paper's layer, with its stabilisation set as float32 needs it:

```
$ widehead verify --head factored --lambda 0.2 --inverse refresh --stabilizer svd --sigma-low 0.5 --sigma-high 2 --n-check 10
factored (f32) beside dense (f64): squared, D = 2000, d = 100, m = 32, K = 1, relu, zero, λ₁ = 0.2, 1000 steps
  relative difference   W 7.54e-07   Q 7.43e-07   w̄ 2.20e-06   ∇H 1.23e-06   loss 6.52e-08
  loss                  32.0000 → 24.4410
  steps                 1000
  checks                100
  fixes                 583
  restores              0
  stabilizer_seconds    0.169362
  inversions            0
  sigma_min             0.501704
  sigma_max             1
  inverse_error         2.57558e-06
  Q_drift               9.98426e-07
```

Other losses, in one go:

```
$ widehead verify --loss taylor,z --init normal --weight-decay 0.01 | grep -E 'beside|relative|loss  '
windowed (f32) beside dense (f64): taylor, D = 2000, d = 100, m = 32, K = 1, relu, normal, λ₁ = 0.05, 1000 steps
  relative difference   W 2.01e-07   Q 1.43e-07   w̄ 2.29e-08   ∇H 3.21e-07   loss 2.81e-09
  loss                  245.4635 → 225.5895
windowed (f32) beside dense (f64): z, D = 2000, d = 100, m = 32, K = 1, relu, normal, λ₁ = 0.05, 1000 steps
  relative difference   W 2.37e-07   Q 1.40e-07   w̄ 2.12e-08   ∇H 8.71e-07   loss 1.78e-10
  loss                  1373.4539 → 1120.3332
```

As a test, in a script:

```
$ widehead verify --steps 100 --tolerance 1e-9 > /dev/null; echo $?
widehead: the largest difference, 5.37e-07, is above --tolerance 1e-09
1
```

A step that does not exist is refused, and the run ends with 1:

```
$ widehead verify --head factored --batch 1 --lambda 1 --stabilizer none | tail -n 1
  stopped: step 1: 1I − 2ηHᵀH is singular (reciprocal condition 5.96e-08, eta = 0.004885757, 2η‖H‖² = 1.00000003): U has no inverse after this step, which was not taken; any other eta will do
```)md"},
    {"widehead bench step",
     R"md(Verifies each head at the benchmark's shape (with D at most 2000), then times steps on synthetic data. Heads take turns, so that ratios hold on a shared machine; a turn's mean is a
sample, upkeep such as closing windows included; the median of the samples is reported. The `factored` head runs without its stabilisation here, whose cost depends on the learning rate and on D:
`--upkeep-lambdas` measures it.

```
$ widehead bench step --heads dense,factored,windowed --outputs 10000,100000,793471 --threads 1
head          outputs    dim  batch    K dtype thr          ms   GFLOP/s  GEMM rate     vs dense
dense           10000    300    128    1   f32   1     21.9412     105.0      105.2        1.0 x
factored        10000    300    128    1   f32   1      2.1636      92.7      109.3       10.1 x
windowed        10000    300    128    1   f32   1      2.1123      73.2      108.4       10.4 x
dense          100000    300    128    1   f32   1    214.9979     107.2      105.0        1.0 x
factored       100000    300    128    1   f32   1      2.1249      94.4      109.6      101.2 x
windowed       100000    300    128    1   f32   1      2.0028      77.2      108.2      107.3 x
dense          793471    300    128    1   f32   1   1755.6887     104.1      104.1        1.0 x
factored       793471    300    128    1   f32   1      2.1562      93.0      109.5      814.2 x
windowed       793471    300    128    1   f32   1      2.0488      75.4      108.3      857.0 x
```

`GFLOP/s` counts the products a head says it makes (`step_products`); `GEMM rate` is what bare products of the same shapes reach; `vs dense` compares times.

```
$ widehead bench step --heads dense,factored --outputs 100000 --threads 1 --rounds 3 \
    --upkeep-lambdas 0.03,0.14 --upkeep-steps 1000 --sigma-low 0.5 --sigma-high 2 --n-check 10
head          outputs    dim  batch    K dtype thr          ms   GFLOP/s  GEMM rate     vs dense
dense          100000    300    128    1   f32   1    333.6884      69.0       71.6        1.0 x
factored       100000    300    128    1   f32   1      3.1915      62.9      108.5      104.6 x
factored       100000    300    128    1   f32   1      4.5751      43.8          -       72.9 x   with stabilizer power at λ₁ = 0.03: 0.038 fixes a step, 25% of the time
factored       100000    300    128    1   f32   1     10.0301      20.0          -       33.3 x   with stabilizer power at λ₁ = 0.14: 0.520 fixes a step, 66% of the time
```

A head that differs from the dense float64 layer by more than 1e-5 (f32) or 1e-12 (f64) is not timed; the program says so and exits with 1.)md"},
});

}  // namespace

std::string_view manual_notes(std::string_view command) {
  const auto* const found = std::ranges::find(notes, command, [](const auto& note) { return note.first; });
  return found == notes.end() ? std::string_view() : found->second;
}

}  // namespace widehead::cli
