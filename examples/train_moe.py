"""Train a small Mixture-of-Experts transformer, with torch's grouped product and with gemmjit's.

The model is a decoder on characters. Each layer has causal attention and, for each token, the best
`--top-k` of `--experts` experts with SwiGLU. Tokens are sorted by expert, whatever the router says:
there is no capacity, no padding and no token that is dropped, and nothing is read back from the
device. The text is made by a small grammar from a seed.

Both backends start from the same weights and see the same batches. `--noise` adds a third run,
torch from weights that are off by as much as a product may be rounded (`--noise 4`: four such).

Suffixes name dimensions: B sequences, L positions, T tokens (B times L), R routed rows (T times
top-k), D model, F hidden, E experts.

Run it: ``python examples/train_moe.py --noise --json run.json --plot run.png`` on a GPU,
``python examples/train_moe.py --tiny`` anywhere.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import random
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import gemmjit

#: Steps that a median of step times leaves out: kernels are compiled, the allocator fills.
WARMUP = 10
#: Half a unit in the last place of 1.
ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}

GroupedMM = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def backends() -> dict[str, GroupedMM]:
    """Return what multiplies rows (R, K) by weights (E, K, N), by name."""
    theirs = getattr(functional, "grouped_mm", None) or torch._grouped_mm
    return {
        "torch": lambda x, w, offs: theirs(x, w, offs=offs),
        "gemmjit": lambda x, w, offs: gemmjit.grouped_mm(x, w, offs=offs),
    }


def write(sentences: int, seed: int) -> str:
    """Return sentences of a small grammar: descriptions, and sums that are right."""
    rng = random.Random(seed)
    nouns = ["fox", "owl", "river", "engine", "letter", "garden", "captain", "machine"]
    adjectives = ["old", "quiet", "red", "careful", "broken", "bright", "distant"]
    verbs = {"sees": "saw", "finds": "found", "carries": "carried", "follows": "followed"}

    def phrase(depth: int = 0) -> str:
        words = ["the", *rng.sample(adjectives, rng.randint(0, 2)), rng.choice(nouns)]
        if depth < 2 and rng.random() < 0.3:
            words += ["that", rng.choice(list(verbs)), phrase(depth + 1)]
        return " ".join(words)

    def sentence() -> str:
        if rng.random() < 0.4:
            a, b = rng.randint(0, 99), rng.randint(0, 99)
            return f"{a} plus {b} is {a + b}."
        present = rng.choice(list(verbs))
        if rng.random() < 0.5:
            return f"{phrase()} {present} {phrase()}."
        return f"yesterday {phrase()} {verbs[present]} {phrase()}."

    return "\n".join(sentence() for _ in range(sentences))


class Reorder(torch.autograd.Function):
    """Rows in another order; a permutation's gradient is one too, and needs no sums."""

    @staticmethod
    def forward(ctx, x_RD, order_R, inverse_R):
        ctx.save_for_backward(order_R, inverse_R)
        return x_RD[order_R]

    @staticmethod
    def backward(ctx, dy_RD):
        _, inverse_R = ctx.saved_tensors
        return dy_RD[inverse_R], None, None


class Experts(nn.Module):
    """A router and its experts."""

    def __init__(self, options: argparse.Namespace, grouped_mm: GroupedMM) -> None:
        super().__init__()
        d, f, e = options.model, options.hidden, options.experts
        self.top_k, self.grouped_mm = options.top_k, grouped_mm
        self.router = nn.Parameter(torch.randn(e, d) / math.sqrt(d))
        self.w13_EFD = nn.Parameter(torch.randn(e, 2 * f, d) / math.sqrt(d))
        self.w2_EDF = nn.Parameter(torch.randn(e, d, f) / math.sqrt(f))

    def forward(self, x_TD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, num_experts = x_TD.shape[0], self.router.shape[0]
        scores_TE = functional.linear(x_TD.float(), self.router).softmax(-1)
        weight_TK, expert_TK = scores_TE.topk(self.top_k)
        weight_TK = weight_TK / weight_TK.sum(-1, keepdim=True)

        # Rows by expert. The sizes stay on the device.
        expert_R = expert_TK.reshape(-1)
        order_R = expert_R.argsort(stable=True)
        inverse_R = torch.empty_like(order_R)
        inverse_R[order_R] = torch.arange(order_R.numel(), device=order_R.device)
        sizes_E = torch.zeros(num_experts, dtype=torch.int64, device=x_TD.device)
        sizes_E = sizes_E.scatter_add(0, expert_R, torch.ones_like(expert_R))
        offs_E = gemmjit.offsets.from_group_sizes(sizes_E)

        x_RD = x_TD.repeat_interleave(self.top_k, 0, output_size=expert_R.numel())
        x_RD = Reorder.apply(x_RD, order_R, inverse_R)
        h_RF2 = self.grouped_mm(x_RD, self.w13_EFD.to(x_TD.dtype).mT, offs_E)
        gate_RF, up_RF = h_RF2.chunk(2, -1)
        s_RF = functional.silu(gate_RF) * up_RF
        o_RD = self.grouped_mm(s_RF, self.w2_EDF.to(x_TD.dtype).mT, offs_E)
        o_TKD = Reorder.apply(o_RD, inverse_R, order_R).view(tokens, self.top_k, -1)
        y_TD = (o_TKD * weight_TK.to(o_TKD.dtype).unsqueeze(-1)).sum(1)

        # Equal load has the value 1, the smallest that a router with its scores can reach.
        share_E = sizes_E.to(scores_TE.dtype) / expert_R.numel()
        return y_TD, num_experts * (share_E * scores_TE.mean(0)).sum()


class Layer(nn.Module):
    """Attention, then experts, each behind a norm and beside a way past it."""

    def __init__(self, options: argparse.Namespace, grouped_mm: GroupedMM) -> None:
        super().__init__()
        d = options.model
        self.heads = options.heads
        self.norms = nn.Parameter(torch.ones(2, d))
        self.qkv = nn.Parameter(torch.randn(3 * d, d) / math.sqrt(d))
        self.proj = nn.Parameter(torch.randn(d, d) / math.sqrt(d * 2 * options.layers))
        self.experts = Experts(options, grouped_mm)

    def forward(self, x_BLD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        b, length, d = x_BLD.shape
        norms = self.norms.to(x_BLD.dtype)
        h_BLD = functional.rms_norm(x_BLD, (d,), norms[0])
        qkv = functional.linear(h_BLD, self.qkv.to(h_BLD.dtype))
        q, k, v = qkv.view(b, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        h = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h_BLD = h.transpose(1, 2).reshape(b, length, d)
        x_BLD = x_BLD + functional.linear(h_BLD, self.proj.to(h_BLD.dtype))
        h_TD = functional.rms_norm(x_BLD, (d,), norms[1]).view(-1, d)
        y_TD, balance = self.experts(h_TD)
        return x_BLD + y_TD.view_as(x_BLD), balance


class Model(nn.Module):
    """Characters in, the loss of guessing the next ones out."""

    def __init__(self, options: argparse.Namespace, vocabulary: int, grouped_mm: GroupedMM) -> None:
        super().__init__()
        d = options.model
        self.dtype = getattr(torch, options.dtype)
        self.characters = nn.Parameter(torch.randn(vocabulary, d) * 0.02)
        self.positions = nn.Parameter(torch.randn(options.length, d) * 0.02)
        self.layers = nn.ModuleList(Layer(options, grouped_mm) for _ in range(options.layers))
        self.norm = nn.Parameter(torch.ones(d))

    def forward(self, text_BL: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x_BLD = (self.characters[text_BL[:, :-1]] + self.positions).to(self.dtype)
        balances = []
        for layer in self.layers:
            x_BLD, balance = layer(x_BLD)
            balances.append(balance)
        x_BLD = functional.rms_norm(x_BLD, x_BLD.shape[-1:], self.norm.to(self.dtype))
        logits = functional.linear(x_BLD, self.characters.to(self.dtype)).float()
        loss = functional.cross_entropy(logits.flatten(0, 1), text_BL[:, 1:].flatten())
        return loss, torch.stack(balances).mean()


def train(options: argparse.Namespace, grouped_mm: GroupedMM, perturbed: int = 0) -> dict:
    """Train a model from the seed, or near it; return its losses, step times and memory."""
    device, on_gpu = torch.device(options.device), options.device == "cuda"
    text = write(options.sentences, options.seed)
    alphabet = "".join(sorted(set(text)))
    codes = torch.tensor([alphabet.index(c) for c in text], device=device)

    torch.manual_seed(options.seed)
    with device:  # drawing this many weights on the host takes longer than training
        model = Model(options, len(alphabet), grouped_mm)
    if perturbed:
        # A product of length K may be off by (K + 2) roundings in FP32, and one to its type.
        dtype = model.dtype
        k = max(options.model, options.hidden)
        size = (k + 2) * ROUNDOFF[torch.float32] + (dtype != torch.float32) * ROUNDOFF[dtype]
        torch.manual_seed(options.seed + perturbed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + size * (2 * torch.rand_like(parameter) - 1))
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), fused=on_gpu)

    rng = torch.Generator().manual_seed(options.seed)
    last = codes.numel() - options.length - 1
    starts = torch.randint(last, (options.steps, options.batch), generator=rng).to(device)
    window = torch.arange(options.length + 1, device=device)

    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    losses, marks = [], [mark(on_gpu)]
    for step in range(options.steps):
        warm = min(1.0, (step + 1) / 20)
        decay = 0.55 + 0.45 * math.cos(math.pi * step / options.steps)
        optimizer.param_groups[0]["lr"] = options.lr * warm * decay
        loss, balance = model(codes[starts[step, :, None] + window])
        (loss + 0.01 * balance).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        marks.append(mark(on_gpu))
    if on_gpu:
        torch.cuda.synchronize()
    times = [1e-3 * a.elapsed_time(b) if on_gpu else b - a for a, b in pairwise(marks)]
    median = statistics.median(times[min(WARMUP, len(times) // 2) :])
    return {
        "loss": torch.stack(losses).tolist(),
        "step_ms": 1e3 * median,
        "tokens_per_s": options.batch * options.length / median,
        "peak_memory_mib": torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def mark(on_gpu: bool):
    """Return the time, or an event on the device's stream."""
    if not on_gpu:
        return time.perf_counter()
    return torch.cuda.current_stream().record_event(torch.cuda.Event(enable_timing=True))


def run(options: argparse.Namespace) -> dict:
    """Train with each backend that is asked for, and return the report."""
    found = backends()
    names = list(found) if options.backend == "both" else [options.backend]
    if options.device == "cuda":  # a process grows faster with age, whichever backend comes first
        for name in names:
            train(argparse.Namespace(**{**vars(options), "steps": WARMUP}), found[name])
    runs = {name: train(options, found[name]) for name in names}
    for draw in range(options.noise):
        name = f"torch, perturbed {draw + 1}".removesuffix(" 1")
        runs[name] = train(options, found["torch"], perturbed=draw + 1)
    report = {
        "settings": {k: v for k, v in vars(options).items() if k not in ("json", "plot")},
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "CPU",
        "torch": torch.__version__,
        "gemmjit": gemmjit.__version__,
        "runs": runs,
    }
    if "torch" in runs:
        theirs = runs["torch"]["loss"]
        report["furthest_from_torch"] = {
            name: max(abs(a - b) for a, b in zip(one["loss"], theirs, strict=True))
            for name, one in runs.items()
            if name != "torch"
        }
    return report


def show(report: dict) -> None:
    """Print what was found."""
    runs = report["runs"]
    print(f"{report['device']}, torch {report['torch']}, gemmjit {report['gemmjit']}")
    print("step  " + "".join(f"{name:>20}" for name in runs))
    steps = len(next(iter(runs.values()))["loss"])
    for step in sorted({*range(0, steps, max(1, steps // 10)), steps - 1}):
        print(f"{step:4}  " + "".join(f"{one['loss'][step]:20.4f}" for one in runs.values()))
    for name, one in runs.items():
        memory = one["peak_memory_mib"]
        print(
            f"{name}: {one['step_ms']:.2f} ms a step, {one['tokens_per_s']:.0f} tokens/s"
            + (f", {memory:.0f} MiB at most" if memory else "")
        )
    for name, value in report.get("furthest_from_torch", {}).items():
        print(f"largest difference of loss, {name} and torch: {value:.2e}")


def plot(report: dict, path: Path) -> None:
    """Draw the loss curves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, one in report["runs"].items():
        label, style = f"{name}: {one['step_ms']:.1f} ms", {"torch": "-", "gemmjit": "--"}
        axes.plot(one["loss"], style.get(name, ":"), label=label, linewidth=1.2)
    axes.set(xlabel="step", ylabel="loss (nats per character)", title=report["device"])
    axes.legend()
    figure.savefig(path, dpi=150)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the settings of a command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", choices=("torch", "gemmjit", "both"), default="both")
    parser.add_argument("--noise", type=int, nargs="?", const=1, default=0, help="perturbed runs")
    parser.add_argument("--tiny", action="store_true", help="a size for a CPU: a few steps")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), help="of the products")
    parser.add_argument("--json", type=Path, help="write the report here")
    parser.add_argument("--plot", type=Path, help="draw the loss curves here")
    sizes = {
        "steps": (300, 4), "batch": (16, 2), "length": (512, 16), "layers": (8, 2),
        "model": (1024, 32), "hidden": (1024, 32), "heads": (16, 2), "experts": (32, 4),
        "top_k": (4, 2), "sentences": (60_000, 200), "seed": (0, 0),
    }  # fmt: skip
    for name, (normal, tiny) in sizes.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, help=f"{normal}; tiny: {tiny}")
    parser.add_argument("--lr", type=float, default=1e-3)
    options = parser.parse_args(argv)
    if options.tiny:
        options.device = "cpu"
    for name, defaults in sizes.items():
        if getattr(options, name) is None:
            setattr(options, name, defaults[options.tiny])
    if options.dtype is None:
        options.dtype = "bfloat16" if options.device == "cuda" else "float32"
    return options


def main(argv: list[str] | None = None) -> dict:
    """Run a command line; return the report."""
    options = parse(argv)
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("--plot: expected matplotlib; found none. pip install matplotlib")
    print(f"{options.steps} steps on {options.device}, {options.dtype}", flush=True)
    if options.device == "cpu" and not options.tiny:
        print("These sizes are for a GPU; --tiny is for CPUs.", flush=True)
    report = run(options)
    show(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.plot:
        plot(report, options.plot)
    return report


if __name__ == "__main__":
    main()
