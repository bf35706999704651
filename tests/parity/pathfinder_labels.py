#!/usr/bin/env python3
"""Trains a convolutional network (PyTorch) on the pictures of furlong prepare pathfinder: whether they contain their
labels is then known without a model of Furlong.

  tests/parity/pathfinder_labels.py data/pathfinder.h5

Prints the accuracy on the first 2,000 test pictures after each pass. Exit status 1 if it ends below 80 %.
"""

import argparse

import h5py
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """Two 3 x 3 convolutions around a residual connection; dilation widens what they see."""

    def __init__(self, width, dilation):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])

    def forward(self, x):  # [batch, width, rows, columns]
        inner = F.relu(self.norms[0](self.first(x)))
        return F.relu(x + self.norms[1](self.second(inner)))


class Network(nn.Module):
    def __init__(self, width=32, dilations=(1, 2, 4, 1, 2, 4)):
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.blocks = nn.Sequential(*(Block(width, dilation) for dilation in dilations))
        self.last = nn.Linear(2 * width, 2)

    def forward(self, x):
        x = self.blocks(self.first(x))
        return self.last(torch.cat([x.amax((2, 3)), x.mean((2, 3))], 1))


def pictures(file, split, count):
    ((begin, end),) = file["splits"][split][:]
    first = int(np.searchsorted(file["documents"][:], begin))
    size = int(file["documents"][first + 1] - begin)
    count = min(count, (int(end) - int(begin)) // size)
    values = file["tokens"][begin : begin + count * size].reshape(count, 1, int(size**0.5), -1)
    labels = file["labels"][first : first + count]
    return torch.tensor(values, dtype=torch.float32) / 255, torch.tensor(labels, dtype=torch.long)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--pictures", type=int, default=19520, help="of training (default: %(default)s)")
    parser.add_argument("--passes", type=int, default=10, help="over these pictures (default: %(default)s)")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    with h5py.File(arguments.dataset) as file:
        inputs, labels = pictures(file, "train", arguments.pictures)
        test_inputs, test_labels = pictures(file, "test", 2000)
    network, batch = Network(), 64
    steps = arguments.passes * len(inputs) // batch
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps)
    done = accuracy = 0
    for number in range(arguments.passes):
        network.train()
        for rows in torch.randperm(len(inputs)).split(batch):
            if done == steps:
                break
            loss = F.cross_entropy(network(inputs[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            done += 1
        network.eval()
        with torch.no_grad():
            answers = torch.cat([network(part).argmax(1) for part in test_inputs.split(500)])
        accuracy = (answers == test_labels).float().mean().item()
        print(f"pass {number + 1}: loss {loss.item():.3f}, accuracy {accuracy:.4f}", flush=True)
    raise SystemExit(accuracy < 0.8)


if __name__ == "__main__":
    main()
