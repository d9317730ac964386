"""The token solver: growth with the number of tokens, the sum over all pairs, and what the density saves."""

import importlib.util
import time

import numpy as np
from scipy.stats import uniform_direction

from benchmarks.harness import Figure, Report, Settings, Table, interleaved, milliseconds
from benchmarks.problems import octahedron, random_heads
from benchmarks.tokens import energy, force, rk4
from sphereflow.heads import WeightPath
from sphereflow.particles import ParticleSolver, TokenOperator, mobility

T_END = 2.0
SMOOTH = {"initial__kappa": 6, "solver__t_end": T_END}


def solver(count: int, heads: int) -> ParticleSolver:
    """Tokens uniform on the sphere under frozen heads of norm 5, RK4 with the ledger."""
    chosen = random_heads(heads, 5.0)
    path = WeightPath(np.array([0.0, 1e3]), np.stack([chosen.logits] * 2), chosen.weight)
    positions = uniform_direction(3).rvs(count, random_state=np.random.default_rng(1))
    return ParticleSolver(TokenOperator(), path, positions, np.full(count, 1 / count), "rk4", 0.01)


class AllPairs:
    """Lets the token solver take the sum over all pairs, whatever the number of tokens, while in its `with` block."""

    def __enter__(self):
        self._before = mobility.FEW_PAIRS
        mobility.FEW_PAIRS = 10**18

    def __exit__(self, *_):
        mobility.FEW_PAIRS = self._before


def growth(settings: Settings) -> Report:
    """Time of a step for growing numbers of tokens, and against the sum over all pairs."""
    counts = settings.pick((10**4, 10**5, 10**6), (500, 1000))
    solvers = {n: solver(n, 1) for n in counts}
    pairs = solver(counts[0], 1)

    def all_pairs():
        with AllPairs():
            pairs.advance(1e3)

    calls = {n: lambda s=s: s.advance(1e3) for n, s in solvers.items()} | {"pairs": all_pairs}
    times = interleaved(calls, settings.pick(3, 1), sample=0)
    report = Report()
    for few, many in zip(counts[:-1], counts[1:], strict=True):
        report.figures.append(
            times.figure(
                f"tokens: {many} / {few}, per token", many, few, "smaller",
                "cost of a step for one token of many / of few, one head of norm 5: 1 is linear growth", few / many, target=1.2,
            )  # fmt: skip
        )
    report.figures.append(
        times.figure(
            f"tokens: all pairs / expansion, {counts[0]} tokens", "pairs", counts[0], "larger",
            "a step by the positive sum over all pairs / by the kernel expansion, one head of norm 5",
        )  # fmt: skip
    )
    slow = times.of("pairs")
    rows = []
    for n in counts:
        scaled = slow * (n / counts[0]) ** 2
        rows.append([f"{n:,}", milliseconds(times.of(n)), milliseconds(scaled), f"{scaled / times.of(n):,.0f}"])
    header = ["tokens", "expansion", f"all pairs (scaled from {counts[0]:,})", "ratio"]
    report.tables.append(Table("A step of RK4 with its ledger, one head of norm 5", header, rows))
    return report


def density_energy(nlat: int, **changes) -> tuple[float, float]:
    """E at the end and the CPU time of the steps to it, the solver's construction left out."""
    run = octahedron(grid__nlat=nlat, **SMOOTH, **changes)
    start = time.process_time()
    while run.t < T_END:
        run.advance(T_END)
    return run.energy, time.process_time() - start


def tokens_energy(count: int, dt: float, path, sample, seed: int) -> float:
    """E(2) of tokens drawn from the initial density."""
    x = sample(count, np.random.default_rng(seed))
    steps = round(T_END / dt)
    for k in range(steps):
        x = rk4(x, path.logits_at((k + 0.5) * dt), dt)
    return energy(x, path.logits_at(T_END))


def octahedron_sample(kappa: float):
    """Draws from the equal mixture of von Mises-Fisher densities at the vertices of the octahedron."""
    axes = np.concatenate([np.eye(3), -np.eye(3)])

    def sample(count, rng):
        centre = axes[rng.integers(6, size=count)]
        along = 1 + np.log1p(rng.random(count) * np.expm1(-2 * kappa)) / kappa  # cosine of the angle to the centre
        across = rng.standard_normal((count, 3))
        across -= np.sum(across * centre, axis=1, keepdims=True) * centre
        across /= np.linalg.norm(across, axis=1, keepdims=True)
        return along[:, None] * centre + np.sqrt(1 - along**2)[:, None] * across

    return sample


def sampling_error(settings: Settings, exact: float, path, sample) -> tuple[float, float, list[list[str]]]:
    """Relative error of E(2) of n tokens, a scatter c / sqrt(n) and a bias b / n: c, b, and the measured rows.

    The bias is the energy of tokens with themselves.
    """
    counts, replicas = settings.pick((50, 100, 200, 400), (20, 40)), settings.pick(40, 4)
    rows, scatter, bias = [], [], []
    for count in counts:
        found = np.array([tokens_energy(count, 0.2, path, sample, 1000 * count + k) for k in range(replicas)])
        scatter.append(found.std(ddof=1) / exact * np.sqrt(count))
        bias.append((found.mean() / exact - 1) * count)
        error = np.sqrt(np.mean((found / exact - 1) ** 2))
        rows.append([str(count), f"{error:.1e}", f"{scatter[-1]:.3f}", f"{bias[-1]:.2f}"])
    return float(np.median(scatter)), float(np.median(bias)), rows


def tokens_needed(tolerance: float, scatter: float, bias: float) -> float:
    """The n with scatter^2 / n + bias^2 / n^2 = tolerance^2."""
    return (scatter**2 + np.sqrt(scatter**4 + 4 * (bias * tolerance) ** 2)) / (2 * tolerance**2)


def cheapest_grid(exact: float, tolerance: float, sizes) -> tuple[int, float]:
    """The coarsest grid whose E(2) has the tolerance, and the error there."""
    for nlat in sizes:
        error = abs(density_energy(nlat)[0] / exact - 1)
        if error <= tolerance:
            return nlat, error
    raise RuntimeError(f"no grid reaches {tolerance}")


def against_direct_tokens(settings: Settings) -> Report:
    """Time to E(2) with a given error: tokens by the direct sum / density, ten moving heads."""
    fine = settings.pick(64, 24)
    exact = density_energy(fine, solver__error_tolerance=1e-6)[0]
    path, sample = octahedron(grid__nlat=16, **SMOOTH).path, octahedron_sample(SMOOTH["initial__kappa"])
    scatter, bias, statistics = sampling_error(settings, exact, path, sample)
    direct = time_of_direct_run(settings, path, sample)
    report, rows = Report(), []
    for tolerance, target in ((1e-2, 100.0), (1e-3, 10_000.0)):
        nlat, error = cheapest_grid(exact, tolerance, settings.pick((12, 16, 24, 32, 48), (16, 24)))
        needed = float(tokens_needed(tolerance, scatter, bias))
        quickest = float(np.median([density_energy(nlat)[1] for _ in range(settings.pick(7, 1))]))
        for library, (count, seconds) in direct.items():
            spent = seconds * (needed / count) ** 2
            report.figures.append(
                Figure(
                    f"tokens: direct {library} / density, E(2) to {tolerance:g}", spent / quickest, "larger",
                    "time of a direct run with as many tokens as the error asks for / of a density run that meets it",
                    target=target, extrapolated=bool(needed > 1.5 * count), steady=False,
                )  # fmt: skip
            )
            rows.append(
                [f"{tolerance:g}", f"{nlat} x {2 * nlat}", f"{error:.0e}", milliseconds(quickest), library, f"{needed:,.0f}",
                 milliseconds(spent) + (" (scaled)" if needed > 1.5 * count else ""), f"{spent / quickest:,.0f}"]
            )  # fmt: skip
    header = ["error of E(2)", "grid", "its error", "density", "direct sum in", "tokens", "time", "ratio"]
    report.tables.append(Table("Density against direct tokens, ten oscillating heads, until t = 2", header, rows))
    header = ["tokens", "error of E(2)", "scatter times sqrt(n)", "bias times n"]
    report.tables.append(Table("Sampling error of tokens", header, statistics))
    return report


def time_of_direct_run(settings: Settings, path, sample) -> dict[str, tuple[int, float]]:
    """Number of tokens and CPU time of a run to t = 2 by the direct sum, ten steps of RK4, by library."""
    count = settings.pick(2000, 50)
    x, logits = sample(count, np.random.default_rng(0)), path.logits_at(0.0)
    calls = {"numpy": lambda: force(x, logits)}
    if importlib.util.find_spec("torch") is not None:
        calls["torch"] = _torch_force(x, logits)
    times = interleaved(calls, settings.pick(5, 1))
    return {name: (count, 40 * times.of(name)) for name in calls}


def _torch_force(x, logits):
    """The same sum in torch, double precision, one thread."""
    import torch

    torch.set_num_threads(1)
    x, logits = torch.from_numpy(x), torch.from_numpy(logits)

    def call():
        moved = torch.einsum("hij,nj->hni", logits, x)
        v = -(torch.softmax(x @ moved.transpose(1, 2), dim=-1) @ moved).mean(0)
        return v - (v * x).sum(1, keepdim=True) * x

    return call
