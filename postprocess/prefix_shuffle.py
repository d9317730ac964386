"""How much tokens mind their context: shuffle the first tokens of a sequence and see what becomes of the later ones.

    python postprocess/prefix_shuffle.py [recorded.npz] [--prefix K] [--mode content|order] [--draws N] [-o table.csv]
                                         [--figure picture.png]

The archive holds `states` (layer, token, d), the unit tokens of a causal transformer before each layer; the weights of the
layers `logits` and `values` (layer, head, d, d); the likelihoods' concentrations `kappa` (a number, (head) or (layer, head));
optionally `step`, the residual's factor (1), and `loss` (token), a task's loss. The first K tokens of layer 0 are shuffled
and all layers are applied again, by `sphereflow.TransformerBlock`:

    content    the coordinates of each of the first K tokens are permuted: other tokens in the same places
    order      the first K tokens are permuted: the same tokens in other places

For every layer the table gives, averaged over the tokens behind the prefix and over the draws, before and after: surprisal
- log p, variational divergence KL(q || p), resultant length of the attention and the concentration `kappa` of the von
Mises-Fisher density with a mean of that length (all of `sphereflow.variational`; the latents of token i are the tokens before
it, itself left out: every token explains itself best), the mean absolute change of the surprisal (`sensitivity`), and the
surprisal's correlation with the loss if there is one. The layers themselves let tokens see themselves.
A causal token sees a set, not an order: with `order` tokens behind the prefix change from the second layer on only.

Without an archive a synthetic example runs: random tokens under heads with likelihoods of low, moderate and high
concentration. It is synthetic: it shows what the flow does in these regimes and says nothing about a trained model. A line on
standard error gives the sensitivity of each regime, averaged over the layers. Existing files stay unless there is `--force`.
"""

import argparse
import csv
import sys
from pathlib import Path

import numpy as np
from scipy.special import logsumexp, softmax

from sphereflow import TransformerBlock
from sphereflow.attention import Heads
from sphereflow.errors import CaseError, SphereflowError
from sphereflow.plotting import save_figure
from sphereflow.plotting.saving import check_output, new_file
from sphereflow.plotting.style import BLACK, BLUE, ORANGE, RED, new_figure, settle, styled
from sphereflow.storage.arrays import read_arrays
from sphereflow.storage.claim import check_target
from sphereflow.variational import equivalent_kappa, infer, likelihood_matrices

REGIMES = {"low": 0.5, "moderate": 4.0, "high": 16.0}
COLUMNS = ("surprisal", "posterior_divergence", "resultant")


def load(path):
    """The arrays of an archive, checked, by name."""
    arrays = read_arrays(path, ("states", "logits", "values", "kappa"), ("step", "loss"))
    states, logits, values = arrays["states"], arrays["logits"], arrays["values"]
    if states.ndim != 3:
        raise CaseError(f"{path}: array 'states' has shape {states.shape}; expected (layer, token, d)")
    layers, count, d = states.shape
    if logits.ndim != 4 or logits.shape != (layers, logits.shape[1], d, d):
        raise CaseError(f"{path}: array 'logits' has shape {logits.shape}; expected ({layers}, any, {d}, {d})")
    if values.shape != logits.shape:
        raise CaseError(f"{path}: array 'values' has shape {values.shape}; expected {logits.shape}, that of 'logits'")
    heads = logits.shape[:2]
    if arrays["kappa"].shape not in ((), heads[1:], heads) or not (arrays["kappa"] >= 0).all():
        raise CaseError(f"{path}: array 'kappa' has shape {arrays['kappa'].shape}; expected numbers >= 0, (), or {heads}")
    if "loss" in arrays and arrays["loss"].shape != (count,):
        raise CaseError(f"{path}: array 'loss' has shape {arrays['loss'].shape}; expected ({count},)")
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise CaseError(f"{path}: array {name!r} has non-finite entries")
    if np.abs(np.linalg.norm(states, axis=-1) - 1).max() > 1e-6:
        raise CaseError(f"{path}: array 'states' must hold unit vectors")
    return arrays | {"kappa": np.broadcast_to(arrays["kappa"], heads), "step": float(arrays.get("step", 1.0))}


def propagate(tokens, model):
    """States before each layer, (layer, token, d), from those before the first."""
    states = [tokens]
    for logits, values in zip(model["logits"][:-1], model["values"][:-1], strict=True):
        states.append(TransformerBlock.from_matrices(logits, values, step=model["step"], causal=True)(states[-1]))
    return np.array(states)


def measure(states, model):
    """Surprisal, divergence and resultant of each token given those before it, (3, layer, token); NaN for the first."""
    out = []
    for x, logits, kappa in zip(states, model["logits"], model["kappa"], strict=True):
        heads = Heads(logits, np.full(len(kappa), 1 / len(kappa)), concentration=kappa)
        seen, own = np.tri(len(x), k=-1, dtype=bool)[1:], x[1:]
        pull, exact = (np.where(seen, own @ matrices @ x.T, -np.inf) for matrices in (logits, likelihood_matrices(heads)))
        size = np.log(np.arange(1, len(x)))
        log_m, evidence = (logsumexp(part, axis=-1) - size for part in (pull, exact))
        found = infer(own, heads, log_m, softmax(pull, axis=-1) @ x, evidence)
        out.append([np.append(np.nan, getattr(found, name)) for name in COLUMNS])
    return np.moveaxis(np.array(out), 0, 1)


def shuffled(tokens, prefix, mode, rng):
    """Tokens (n, d) whose first ones are shuffled."""
    first = rng.permuted(tokens[:prefix], axis=1) if mode == "content" else rng.permutation(tokens[:prefix])
    return np.concatenate([first, tokens[prefix:]])


def table(model, prefix, mode="content", draws=20, seed=0):
    """A row for each layer, as a list of dictionaries."""
    tokens, rng = model["states"][0], np.random.default_rng(seed)
    if not 1 <= prefix < len(tokens):
        raise CaseError(f"prefix: {prefix} is not allowed; must be from 1 to {len(tokens) - 1}, the tokens but one")
    before = measure(propagate(tokens, model), model)[..., prefix:]
    after = np.array([
        measure(propagate(shuffled(tokens, prefix, mode, rng), model), model)[..., prefix:] for _ in range(draws)
    ])  # fmt: skip
    change = np.abs(after[:, 0] - before[0]).mean(axis=0)
    rows = []
    for layer in range(before.shape[1]):
        row = {"layer": layer}
        for k, name in enumerate(COLUMNS):
            row |= {f"{name}_before": before[k, layer].mean(), f"{name}_after": after[:, k, layer].mean()}
        for when in ("before", "after"):
            row[f"kappa_{when}"] = equivalent_kappa(row[f"resultant_{when}"], tokens.shape[1])
        row["sensitivity"] = change[layer].mean()
        if "loss" in model:
            row["loss_correlation"] = _correlation(before[0, layer], model["loss"][prefix:])
        rows.append({key: value if key == "layer" else float(value) for key, value in row.items()})
    return rows


def _correlation(one, other):
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return np.nan
    return np.corrcoef(one, other)[0, 1]


def synthetic(kappa, layers=6, count=48, d=16, heads=2, seed=0):
    """Random unit tokens and layers near the exact posterior: logits kappa (I + noise), values kappa I, step 1/(4 kappa)."""
    rng = np.random.default_rng(seed)
    tokens = rng.standard_normal((count, d))
    logits = kappa * (np.eye(d) + 0.1 * rng.standard_normal((layers, heads, d, d)) / np.sqrt(d))
    values = kappa * np.broadcast_to(np.eye(d), logits.shape)
    model = {"logits": logits, "values": values, "kappa": np.full((layers, heads), kappa), "step": 0.25 / kappa}
    tokens /= np.linalg.norm(tokens, axis=1, keepdims=True)
    return model | {"states": propagate(tokens, model)}


def synthetic_tables(prefix, mode, draws, seed=0):
    """The `table` of the synthetic example in each regime of concentration, by name."""
    return {name: table(synthetic(kappa, seed=seed), prefix, mode, draws, seed) for name, kappa in REGIMES.items()}


def mean_sensitivity(rows):
    """Sensitivity averaged over the layers of a table."""
    return float(np.mean([row["sensitivity"] for row in rows]))


def write(rows, file):
    """Write rows as comma-separated values."""
    writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: v if k in ("layer", "regime") else f"{v:.6g}" for k, v in row.items()} for row in rows)


def draw(tables, title):
    """The columns of tables against the layer, a colour for each table: as they were, shuffled, and the sensitivity."""
    panels = {
        "surprisal": r"Surprisal $-\log p$",
        "posterior_divergence": r"Divergence KL$(q\,\|\,p)$",
        "resultant": "Resultant length of the attention",
        "sensitivity": r"Sensitivity: mean $|\Delta\,(-\log p)|$",
    }
    with styled():
        figure = new_figure(8.27, 5.2)
        for axes, (name, label) in zip(figure.subplots(2, 2, sharex=True).flat, panels.items(), strict=True):
            for colour, (regime, rows) in zip((BLUE, ORANGE, RED), tables.items(), strict=False):
                layers = [row["layer"] for row in rows]
                if name == "sensitivity":
                    axes.plot(layers, [row[name] for row in rows], "o-", ms=4, color=colour, label=regime)
                else:
                    axes.plot(layers, [row[f"{name}_before"] for row in rows], "o-", ms=4, color=colour)
                    axes.plot(layers, [row[f"{name}_after"] for row in rows], "o--", ms=4, mfc="white", color=colour)
            axes.set_title(label)
            axes.xaxis.get_major_locator().set_params(integer=True)
        resultant, sensitivity = figure.axes[2:]
        resultant.set(ylim=(0, 1), xlabel="layer")
        sensitivity.set(xlabel="layer")
        if len(tables) > 1:
            figure.axes[1].set(yscale="log")
            largest = max(row["sensitivity"] for rows in tables.values() for row in rows)
            sensitivity.set(yscale="log", ylim=(max(sensitivity.dataLim.y0 / 1.5, 1e-6 * largest), 1.5 * largest))
        handles = [
            figure.axes[0].plot([], [], look, ms=4, mfc=fill, color=BLACK, label=label)[0]
            for look, fill, label in (("o-", BLACK, "as it was"), ("o--", "white", "prefix shuffled"))
        ]
        if len(tables) > 1:
            handles += sensitivity.lines
        figure.legend(handles=handles, loc="lower center", ncols=len(handles))
        figure.suptitle(title, x=0.01, ha="left", weight="bold", parse_math=False)
        figure.tight_layout(rect=(0, 0.04, 1, 1))
        settle(figure)
    return figure


def main(arguments=None):
    """Read or make the states, write the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, help="archive of recorded states; without it the synthetic example")
    parser.add_argument("--prefix", type=int, default=12, help="number of tokens that are shuffled (12)")
    parser.add_argument("--mode", choices=("content", "order"), default="content")
    parser.add_argument("--draws", type=int, default=20, help="number of shuffles averaged over (20)")
    parser.add_argument("--seed", type=int, default=0, help="of the shuffles, and of the synthetic tokens (0)")
    parser.add_argument("-o", "--output", type=Path, help="table as .csv (standard output)")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the table: .png, .pdf or .svg")
    parser.add_argument("--force", action="store_true", help="keep files that have these names as NAME.bak and write anew")
    options = parser.parse_args(arguments)
    try:
        _work(options)
    except SphereflowError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _work(options):
    how = (options.prefix, options.mode, options.draws, options.seed)
    if options.draws < 1:
        raise CaseError(f"draws: {options.draws} is not allowed; must be >= 1")
    if options.seed < 0:
        raise CaseError(f"seed: {options.seed} is not allowed; must be >= 0")
    if options.figure is not None:
        check_output(options.figure, ("png", "pdf", "svg"), options.force)
    if options.output is not None:
        check_target(options.output, options.force)
    what = f"{options.prefix} tokens, {'their content' if options.mode == 'content' else 'their order'} shuffled"
    if options.file is None:
        tables, title = synthetic_tables(*how), f"Synthetic tokens, the first {what}"
        drawn = {f"{name} concentration, $\\kappa$ = {REGIMES[name]:g}": some for name, some in tables.items()}
        rows = [{"regime": name, **row} for name, some in tables.items() for row in some]
        found = ", ".join(f"{name} {mean_sensitivity(some):.3g}" for name, some in tables.items())
        print(f"mean sensitivity by concentration: {found}", file=sys.stderr)
    else:
        model = load(options.file)
        rows = table(model, *how)
        drawn, title = {"": rows}, f"{options.file.name}: the first {what}"
        error = np.abs(propagate(model["states"][0], model) - model["states"]).max()
        if error > 1e-6:
            print(f"the recorded states differ by up to {error:.2g} from what the weights make of layer 0", file=sys.stderr)
    if options.output is None:
        write(rows, sys.stdout)
    else:
        with new_file(options.output, options.force) as temporary, open(temporary, "w", encoding="utf-8") as file:
            write(rows, file)
    if options.figure is not None:
        save_figure(draw(drawn, title), options.figure, force=options.force)


if __name__ == "__main__":
    sys.exit(main())
