#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gradients and activations of transformers, for bench/compress.sh: needs PyTorch, no GPU.

    bench/compress_data.py FOLDER [--models rank,text] [--steps N] [--bytes BYTES]

Two models. "rank" is the one of tests/gpu/torch_rank.py: two encoder layers of width 128 on noise, SGD. "text" learns to predict the
next byte of this tree's documentation: four layers of width 256, GELU, Adam; its data have the structure that noise lacks. Each is
looked at early, from its fourth step on, and late, after N (500; 100 for "text") steps, in files MODEL-PHASE-WHAT.TYPE:

    grad      gradients of all parameters, as data parallelism sums them
    layer     outputs of the layers, which pipeline parallelism sends forward
    partial   outputs of attention and of the feed-forward block before the residual sum, which tensor parallelism sums
    hidden    inputs of a feed-forward block's second half, after ReLU or GELU: rarely sent, here because ReLU leaves zeros
    back      gradients of the layers' outputs, which pipeline parallelism sends back

of f32 as computed, and rounded to bf16 and f16. A file has BYTES (4 MiB) of f32, in eight parts that are evenly spaced in what the
steps gave, half as many where it is rounded. f16 is scaled before by a power of two such that the largest value fits, as loss scaling
does.
"""
import argparse
import glob
import math
import os

import torch

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
WHAT = ("grad", "layer", "partial", "hidden", "back")


class Rank(torch.nn.Module):
    """The model, the data and the optimizer of tests/gpu/torch_rank.py."""

    def __init__(self):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def optimizer(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def loss(self, step):
        torch.manual_seed(100 * step)
        x = torch.randn(8, 32, 128)
        return ((self.encoder(x) - x.flip(1)) ** 2).mean()


class Text(torch.nn.Module):
    """Next byte of docs/*.md."""

    def __init__(self):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, activation="gelu")
        self.encoder = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.embed = torch.nn.Embedding(256, 256)
        self.place = torch.nn.Parameter(torch.randn(128, 256) * 0.02)
        self.head = torch.nn.Linear(256, 256)
        self.mask = torch.nn.Transformer.generate_square_subsequent_mask(128)
        pages = sorted(glob.glob(os.path.join(ROOT, "docs", "**", "*.md"), recursive=True))
        self.text = torch.tensor(list(b"".join(open(p, "rb").read() for p in pages)))

    def optimizer(self):
        return torch.optim.Adam(self.parameters(), lr=5e-4)

    def loss(self, step):
        torch.manual_seed(step)
        at = torch.randint(0, len(self.text) - 129, (4,))
        both = torch.stack([self.text[i:i + 129] for i in at])
        y = self.head(self.encoder(self.embed(both[:, :-1]) + self.place, mask=self.mask))
        return torch.nn.functional.cross_entropy(y.flatten(0, 1), both[:, 1:].flatten())


class Taken:
    """What the hooks of a model see, while it is open."""

    def __init__(self, model, limit):
        self.limit, self.open = limit // 4, False
        self.parts = {w: [] for w in WHAT}
        for layer in model.encoder.layers:
            layer.register_forward_hook(lambda m, i, o: self.layer(o))
            layer.self_attn.register_forward_hook(lambda m, i, o: self.take("partial", o[0]))
            layer.linear2.register_forward_hook(lambda m, i, o: (self.take("partial", o), self.take("hidden", i[0])) and None)

    def layer(self, o):
        self.take("layer", o)
        if self.open:
            o.register_hook(lambda g: self.take("back", g))

    def take(self, what, tensor):
        if self.open:
            self.parts[what].append(tensor.detach().flatten().clone())

    def full(self):
        return all(sum(p.numel() for p in self.parts[w]) >= self.limit for w in WHAT)

    def write(self, folder, name):
        for what in WHAT:
            x = torch.cat(self.parts[what]).float()
            part, apart = self.limit // 8, (x.numel() - self.limit) // 7
            x = torch.cat([x[i * (part + apart):][:part] for i in range(8)])
            scale = 2.0 ** math.floor(math.log2(32768 / x.abs().max().item()))
            with open(os.path.join(folder, f"{name}-{what}.f32"), "wb") as f:
                f.write(x.numpy().tobytes())
            for kind, y in (("bf16", x.bfloat16()), ("f16", (x * scale).half())):
                with open(os.path.join(folder, f"{name}-{what}.{kind}"), "wb") as f:
                    f.write(y.view(torch.int16).numpy().tobytes())
        self.parts = {w: [] for w in WHAT}


def train(model, name, steps, folder, limit):
    model.train()
    opt, taken, step = model.optimizer(), Taken(model, limit), 0
    for phase, first in (("early", 3), ("late", steps)):
        while True:
            taken.open = step >= first
            loss = model.loss(step)
            opt.zero_grad()
            loss.backward()
            taken.take("grad", torch.cat([p.grad.flatten() for p in model.parameters()]))
            opt.step()
            step += 1
            if step % 50 == 0 or step == 1:
                print(f"{name} step {step}: loss {loss.item():.4f}", flush=True)
            if taken.full():
                break
        print(f"{name} {phase}: up to step {step}, loss {loss.item():.4f}", flush=True)
        taken.write(folder, f"{name}-{phase}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--models", default="rank,text")
    p.add_argument("--steps", type=int, default=0)
    p.add_argument("--bytes", type=int, default=4 << 20)
    a = p.parse_args()
    os.makedirs(a.folder, exist_ok=True)
    for name, kind, steps in (("rank", Rank, 500), ("text", Text, 100)):
        if name not in a.models.split(","):
            continue
        torch.manual_seed(1)
        train(kind(), name, a.steps or steps, a.folder, a.bytes)


main()
