"""What a step costs from Python and from PyTorch beside the same step in C++ (docs/python.md has the figures).

    python python/benchmarks/overhead.py [--outputs 793471] [--dim 300] [--batch 128] [--threads 1] [--rounds 15] [--clock wall]

All take the same steps on the same data: C++ inside the extension, in a loop of its own (_core's time_steps); Python one
layer.step after the other; PyTorch head(h, targets).backward() and head.step, where h is a leaf and where it comes from a layer of
one operation, the same in one call (head.learn), and with the loss written on head.statistics, or as a function for head.learn.
"bare" are steps of C++, after each of which PyTorch does what is its own part of these: backward() through a function that does
nothing, and through the operations of that loss; and forward and backward of that layer. "idle" is that function again where
there is no step: the time of one passes, and only what comes after it is counted. "without" is what is left of a way when
PyTorch's own part is taken off: for the own loss the difference of the two bare ones, for the layer that of its own and C++.
They take turns, round by round, each round begins with another, so that what else the machine does meets all of them; a round
is a few windows long, so that upkeep is in all of them, too.
"""

import argparse
import statistics
import time

import numpy as np
import widehead
from widehead import _arrays, losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (
        ("outputs", 793471),
        ("dim", 300),
        ("batch", 128),
        ("threads", 1),
        ("rounds", 15),
        ("steps", 48),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lambda1", type=float, default=0.1)
    parser.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall", help="cpu: of this thread, for busy machines"
    )
    options = parser.parse_args()
    clock = time.perf_counter if options.clock == "wall" else time.thread_time
    D, d, m = options.outputs, options.dim, options.batch

    random = np.random.default_rng(0)
    batches = [
        (np.maximum(random.standard_normal((m, d)), 0).astype(np.float32), random.integers(0, D, m)) for _ in range(8)
    ]
    layer = {"C++": None, "Python": None}
    for way in layer:
        layer[way] = widehead.OutputLayer(D, d, threads=options.threads)
    lr = layer["C++"].rate_for(*batches[0], options.lambda1)

    core = layer["C++"]._core
    pairs = [(h, _arrays.to_targets(t, D, np.dtype(np.float32))) for h, t in batches]

    def in_cpp(steps):
        start = clock()
        core.time_steps(pairs, lr, steps)
        return clock() - start

    def in_python(steps):
        start = clock()
        for step in range(steps):
            h, targets = batches[step % 8]
            layer["Python"].step(h, targets, lr=lr)
        return clock() - start

    ways = {"C++": in_cpp, "Python": in_python}
    try:
        import torch
        from widehead.torch import WideHead
    except ImportError:
        print("PyTorch is not installed: without it")
    else:
        torch.set_num_threads(options.threads)
        tensors = [(torch.from_numpy(h).requires_grad_(), torch.from_numpy(t)) for h, t in batches]

        def of_torch(loss, below=lambda x: x):
            head = WideHead(d, D, threads=options.threads, uses_sum=False, reduction="sum")

            def in_torch(steps):
                start = clock()
                for step in range(steps):
                    h, targets = tensors[step % 8]
                    loss(head, below(h), targets).backward()
                    head.step(lr)
                    h.grad = None  # what is below has used it: that is not our business
                return clock() - start

            return in_torch

        def in_one(*loss):
            head = WideHead(d, D, threads=options.threads, uses_sum=False, reduction="sum")

            def in_torch(steps):
                start = clock()
                for step in range(steps):
                    h, targets = tensors[step % 8]
                    head.learn(h, targets, lr, *loss)
                    h.grad = None
                return clock() - start

            return in_torch

        class Nothing(torch.autograd.Function):
            @staticmethod
            def forward(ctx, h, results):
                ctx.save_for_backward(h)
                return tuple(each.clone() for each in results)

            @staticmethod
            def backward(ctx, *by):
                return torch.from_numpy(gradient), None  # a tensor that nobody else holds becomes h.grad as it is

        gradient, zeros = np.zeros((m, d), np.float32), torch.zeros(m, dtype=torch.float64)

        def bare(results, loss):
            def in_both(steps):
                start = clock()
                for step in range(steps):
                    core.time_steps(pairs[step % 8 : step % 8 + 1], lr, 1)
                    h, _ = tensors[step % 8]
                    loss(Nothing.apply(h, results)).backward()
                    h.grad = None
                return clock() - start

            return in_both

        def bare_layer(steps):
            start = clock()
            for step in range(steps):
                core.time_steps(pairs[step % 8 : step % 8 + 1], lr, 1)
                x, _ = tensors[step % 8]
                layer_below(x).backward(torch.from_numpy(gradient))
                x.grad = None
            return clock() - start

        def layer_below(x):
            return x * 1.0

        def idle(steps):
            total = 0
            for step in range(steps):
                start = clock()
                while clock() - start < pause:
                    pass
                h, _ = tensors[step % 8]
                start = clock()
                Nothing.apply(h, [zeros[0]])[0].backward()
                h.grad = None
                total += clock() - start
            return total

        pause = in_cpp(16) / 16

        def own(q, s, o):
            return (q - 2 * o + 1).sum()

        ways["PyTorch"] = of_torch(lambda head, h, targets: head(h, targets))
        ways["PyTorch, on a layer"] = of_torch(lambda head, h, targets: head(h, targets), layer_below)
        ways["in one call"] = in_one()
        ways["own loss"] = of_torch(lambda head, h, targets: own(*head.statistics(h, targets)))
        ways["own loss in one call"] = in_one(own)
        ways["bare PyTorch"] = bare([zeros[0]], lambda results: results[0])
        ways["bare own loss"] = bare([zeros, zeros, zeros], lambda results: own(*results))
        ways["bare layer"] = bare_layer
        ways["idle"] = idle

    for way in ways.values():
        way(16)
    seconds = {name: [] for name in ways}
    names = list(ways)
    for turn in range(options.rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds[name].append(ways[name](options.steps) / options.steps)
    if "own loss" in ways:
        for name, way, more, less in (
            ("own, without its operations", "own loss", "bare own loss", "bare PyTorch"),
            ("on a layer, without that", "PyTorch, on a layer", "bare layer", "C++"),
        ):
            parts = zip(seconds[way], seconds[more], seconds[less])
            seconds[name] = [whole - (with_it - without) for whole, with_it, without in parts]
    print(f"D = {D}, d = {d}, m = {m}, {options.threads} threads; ms a step, and over C++ in the same round")
    for name in seconds:
        extra = 1 if name == "idle" else 0  # it has no step in it
        ratio = extra + statistics.median(mine / base for mine, base in zip(seconds[name], seconds["C++"]))
        line = f"  {name:28s} median {1e3 * statistics.median(seconds[name]):.3f}"
        if name not in ways:  # the least of a difference says nothing
            print(f"{line}                 overhead: median of rounds {100 * (ratio - 1):+.1f}%")
            continue
        best = extra + min(seconds[name]) / min(seconds["C++"])
        print(
            f"{line}   least {1e3 * min(seconds[name]):.3f}"
            f"   overhead: median of rounds {100 * (ratio - 1):+.1f}%, of the least {100 * (best - 1):+.1f}%"
        )


if __name__ == "__main__":
    main()
