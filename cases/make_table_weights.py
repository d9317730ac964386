"""Make table_weights.npz, the weights that table_weights.toml runs on: python cases/make_table_weights.py

A stand-in for the weights of a trained transformer whose tokens are points of R^3: `LAYERS` layers with `HEADS` heads
each, query, key and value matrices drawn at random and correlated from one layer to the next. The arrays are what
`schedule = "table"` reads: t (layers), logits and values (layers, heads, 3, 3).
"""

from pathlib import Path

import numpy as np

LAYERS, HEADS, DIMENSION = 13, 4, 3
MEMORY = 0.8  # correlation of neighbouring layers
SEED = 7
FILE = Path(__file__).with_name("table_weights.npz")


def weights():
    """The arrays of the file by name."""
    draws = np.random.default_rng(SEED).standard_normal((LAYERS, 3, HEADS, DIMENSION, DIMENSION))
    layers = [draws[0]]
    for draw in draws[1:]:
        layers.append(MEMORY * layers[-1] + np.sqrt(1 - MEMORY**2) * draw)
    query, key, value = np.stack(layers, axis=1)
    logits = np.swapaxes(query, -1, -2) @ key / np.sqrt(DIMENSION)
    return {"t": np.arange(LAYERS, dtype=float), "logits": logits, "values": value}


if __name__ == "__main__":
    np.savez(FILE, **weights())
