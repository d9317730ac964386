"""Score-based variational flow: heads, diagnostics in closed form for von Mises-Fisher mixtures, and general values."""

import numpy as np
import pytest
from builders import advance_to, fitted_order
from closed_forms import langevin, log_i0, tangent, unit, vmf, vmf_mobility
from scipy.special import gammaln, iv, ive, roots_legendre

from sphereflow.attention import AttentionOperator, Heads
from sphereflow.case import parse_case
from sphereflow.cells import cell_means
from sphereflow.diagnostics import record
from sphereflow.errors import CaseError
from sphereflow.grid import GaussGrid
from sphereflow.particles import TokenOperator
from sphereflow.runs import build_solver, build_weight_path, output_layout, run
from sphereflow.variational import (
    UNIFORM_ORDER,
    bessel_ratio,
    density_resultant,
    equivalent_kappa,
    infer_density,
    log_bessel,
    log_vmf_constant,
    mean_resultant,
    resultant_length,
)

GRID = GaussGrid(32)
NODE, GAUSS = roots_legendre(200)
MU = unit([0.3, -0.5, 0.8])
MIXTURE = [(0.4, unit([1.0, 0.2, -0.1]), 3.0), (0.6, unit([-0.4, 1.0, 0.5]), 2.0)]
KAPPA, WEIGHT = np.array([1.5, 4.0]), np.array([0.3, 0.7])
LOGITS = np.random.default_rng(3).normal(size=(2, 3, 3))


def density_fields(logits, values=None, tolerance=1e-12):
    """The model's fields of the mixture; cells stand for nodes, so that the quadrature is exact."""
    density = sum(w * vmf(GRID.points, mu, k) for w, mu, k in MIXTURE)
    heads = Heads(np.asarray(logits, float), WEIGHT, values, concentration=KAPPA)
    return AttentionOperator(GRID, "attention", 1, tolerance, two_point=True)(density, heads)


def mixture_mobility(x, matrix):
    """m(x) and the softmax mean of the mixture, from those of its parts."""
    parts = [(w, *vmf_mobility(x, matrix, mu, k)) for w, mu, k in MIXTURE]
    m = sum(w * np.exp(log_m) for w, log_m, _ in parts)
    return m, sum((w * np.exp(log_m))[..., None] * mean for w, log_m, mean in parts) / m[..., None]


def exact_logits():
    return KAPPA[:, None, None] * np.eye(3)


@pytest.mark.parametrize("d", [2, 3, 5, 64])
def test_normalisation_and_resultant_of_von_mises_fisher(d):
    kappas = np.array([0.0, 1e-3, 0.7, 5.0, 11.0, 12.0, 40.0])
    for kappa in kappas:
        if d == 2:
            total, first = 2 * np.pi * iv(0, kappa), 2 * np.pi * iv(1, kappa)
        else:
            area, angle = np.exp(-log_vmf_constant(0.0, d - 1)), np.pi * (NODE + 1) / 2
            ring = area * np.pi / 2 * GAUSS * np.sin(angle) ** (d - 2) * np.exp(kappa * np.cos(angle))
            total, first = ring.sum(), ring @ np.cos(angle)
        assert log_vmf_constant(kappa, d) == pytest.approx(-np.log(total), abs=1e-10)
        assert resultant_length(kappa, d) == pytest.approx(first / total, abs=1e-10)
    if d == 3:
        np.testing.assert_allclose(resultant_length(kappas, 3), langevin(kappas), atol=1e-12)
    wide = np.array([1e-4, 1e-2, 1.0, 8.0, 90.0, 2000.0])
    np.testing.assert_allclose(equivalent_kappa(resultant_length(wide, d), d), wide, rtol=1e-8)
    assert equivalent_kappa(1.0, d) == np.inf and equivalent_kappa(0.0, d) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("d", [400, 768, 1024, 4096])
def test_von_mises_fisher_in_the_dimensions_of_language_models(d):
    """Where Bessel functions underflow: Amos's bounds (1974) of A_d, d log C_d / d kappa = -A_d, and the way back."""
    kappa = np.geomspace(0.1 * np.sqrt(d), 1e5, 50)
    length, n = resultant_length(kappa, d), d / 2
    assert np.all(length > kappa / (n - 0.5 + np.hypot(n + 0.5, kappa)) * (1 - 1e-13))
    assert np.all(length < kappa / (n - 0.5 + np.hypot(n - 0.5, kappa)) * (1 + 1e-13))
    np.testing.assert_allclose(equivalent_kappa(length, d), kappa, rtol=1e-10)
    step = 1e-4 * kappa
    slope = (log_vmf_constant(kappa - step, d) - log_vmf_constant(kappa + step, d)) / (2 * step)
    rounding = 4 * np.finfo(float).eps * gammaln(d / 2) / step
    assert np.all(np.abs(slope - length) < 1e-7 * length + rounding)


def test_both_forms_of_bessel_functions_agree_where_they_meet():
    nu, x = float(UNIFORM_ORDER), np.geomspace(21, 1e5, 30)
    np.testing.assert_allclose(log_bessel(nu, x), np.log(ive(nu, x)) + x, rtol=1e-13, atol=1e-11)
    np.testing.assert_allclose(bessel_ratio(nu, x), ive(nu + 1, x) / ive(nu, x), rtol=1e-11)


def test_exact_posterior_moves_along_the_gradient_of_the_log_marginal():
    """v = grad log p with p(x) = int vMF(x; y, kappa) rho(y) dy; p integrates to 1, since vMF is symmetric in x and y."""
    fields = density_fields(exact_logits(), tolerance=1e-9)
    found = infer_density(fields)
    marginals = [np.exp(log_vmf_constant(k)) * mixture_mobility(GRID.points, k * np.eye(3))[0] for k in KAPPA]
    for p in marginals:
        assert GRID.integrate(p) == pytest.approx(1, abs=1e-12)
    expected = -sum(w * np.log(p) for w, p in zip(WEIGHT, marginals, strict=True))
    np.testing.assert_allclose(found.surprisal, expected, atol=1e-9)
    assert np.abs(found.posterior_divergence).max() < 1e-12
    score = sum(
        w * tangent(GRID.points, k * mixture_mobility(GRID.points, k * np.eye(3))[1])
        for w, k in zip(WEIGHT, KAPPA, strict=True)
    )
    velocity = np.einsum("cij,ijcd->ijd", fields.velocity, np.stack([GRID.e_theta, GRID.e_phi], axis=2))
    np.testing.assert_allclose(velocity, score, atol=1e-7)


def test_divergence_of_the_attention_posterior_in_closed_form():
    found = infer_density(density_fields(LOGITS, exact_logits()))
    gap, length = 0.0, 0.0
    for w, k, a in zip(WEIGHT, KAPPA, LOGITS, strict=True):
        (m, mean), (evidence, _) = (mixture_mobility(GRID.points, matrix) for matrix in (a, k * np.eye(3)))
        pull = np.einsum("ijc,cd,ijd->ij", GRID.points, a - k * np.eye(3), mean)
        gap = gap + w * (pull - np.log(m) + np.log(evidence))
        length = length + w * np.linalg.norm(mean, axis=-1)
    np.testing.assert_allclose(found.posterior_divergence, gap, atol=1e-9)
    np.testing.assert_allclose(found.resultant, length, atol=1e-10)
    assert found.posterior_divergence.min() > 0


def test_divergence_is_that_of_the_distributions_themselves():
    """KL(q || p) by quadrature over y, at one point."""
    fields, at = density_fields(LOGITS, exact_logits()), (9, 20)
    x, y = GRID.points[at], GRID.points.reshape(-1, 3)
    mass = (fields.node_density * GRID.cell_area[:, None]).ravel()
    expected = 0.0
    for w, k, a in zip(WEIGHT, KAPPA, LOGITS, strict=True):
        q, p = (np.exp(x @ m @ y.T) * mass for m in (a, k * np.eye(3)))
        q, p = q / q.sum(), p / p.sum()
        expected += w * np.sum(q * np.log(q / p))
    assert infer_density(fields).posterior_divergence[at] == pytest.approx(expected, abs=1e-10)


def test_one_component_in_closed_form_and_tokens_that_agree_with_the_density():
    kappa, k0 = 2.5, 6.0
    density = vmf(GRID.points, MU, k0)
    heads = Heads(kappa * np.eye(3)[None], np.ones(1), concentration=np.array([kappa]))
    found = infer_density(AttentionOperator(GRID, tolerance=1e-12, two_point=True)(density, heads))
    r = np.linalg.norm(kappa * GRID.points + k0 * MU, axis=-1)
    constant = np.log(kappa / (4 * np.pi * np.sinh(kappa)))
    np.testing.assert_allclose(found.surprisal, -(constant + log_i0(r) - log_i0(k0)), atol=1e-9)
    np.testing.assert_allclose(found.resultant, langevin(r), atol=1e-10)
    mass = (density * GRID.cell_area[:, None]).ravel()
    tokens = TokenOperator("attention", 1, 1e-12)(GRID.points.reshape(-1, 3), mass, heads).inference
    for name in ("surprisal", "posterior_divergence", "resultant"):
        np.testing.assert_allclose(getattr(tokens, name), getattr(found, name).ravel(), atol=1e-9)


def case_of(heads, solver=None, nlat=16, model=None, **more):
    return parse_case({
        "grid": {"nlat": nlat}, "heads": heads, "model": {"direction": "ascend"} | (model or {}),
        "initial": {"kind": "vmf-mixture", "centers": [[1, 0.3, 0.2], [-0.5, 1, -0.4]], "kappa": [2.0, 3.0]},
        "solver": {"t_end": 0.4, **(solver or {})}, **more,
    })  # fmt: skip


def moments(case):
    s = advance_to(build_solver(case), case.solver.t_end).snapshot()
    return np.array([*s.mean, *s.second_moment.ravel()]), s


def test_svflow_heads_of_a_case():
    path = build_weight_path(case_of({"kind": "svflow", "kappa": [1.0, 2.0, 0.0]}))
    np.testing.assert_array_equal(path.logits[0], np.array([1.0, 2.0, 0.0])[:, None, None] * np.eye(3))
    assert path.values is None  # V = A: one potential carries all heads
    np.testing.assert_array_equal(path.concentration, [1, 2, 0])
    heads = {"kind": "svflow", "kappa": 2.0, "posterior": "attention", "count": 2, "initial": "gaussian-symmetric"}
    path = build_weight_path(case_of(heads))
    np.testing.assert_array_equal(path.values, np.broadcast_to(2 * np.eye(3), (2, 2, 3, 3)))
    assert np.abs(path.logits - 2 * np.eye(3)).max() > 0.1


@pytest.mark.parametrize("kappa", [1.0, 3.0])
def test_exact_posterior_raises_the_likelihood_and_equals_logits_and_attention_forms(kappa):
    exact, s = moments(case_of({"kind": "svflow", "kappa": kappa}))
    plain, _ = moments(case_of({"initial": "identity", "scale": kappa}))
    np.testing.assert_array_equal(exact, plain)
    by_attention = {"kind": "svflow", "kappa": kappa, "posterior": "attention", "initial": "identity", "scale": kappa}
    other, at_end = moments(case_of(by_attention, nlat=24))
    np.testing.assert_allclose(other, moments(case_of({"kind": "svflow", "kappa": kappa}, nlat=24))[0], atol=1e-3)
    start = build_solver(case_of({"kind": "svflow", "kappa": kappa})).snapshot()
    nll = [np.sum(t.sample[1] * t.inference.surprisal) for t in (start, s)]
    assert nll[1] < nll[0] - 0.01
    assert np.abs(at_end.inference.posterior_divergence).max() < 1e-9


@pytest.mark.parametrize("kind", ["finite-volume", "minimizing-movement"])
def test_attention_of_heads_without_a_likelihood(kind):
    """Resultant length and its concentration, recorded of heads of every kind: two symmetric matrices, closed form."""
    a = np.array([[[1.0, 0.4, 0.0], [0.4, -0.5, 0.2], [0.0, 0.2, 0.3]], [[0.5, 0.0, 0.0], [0.0, 1.5, 0.0], [0.0, 0.0, -0.7]]])
    heads = Heads(a, WEIGHT)
    density = sum(w * vmf(GRID.points, mu, k) for w, mu, k in MIXTURE)
    fields = AttentionOperator(GRID, "attention", 1, 1e-12, two_point=True)(density, heads)
    expected = sum(w * np.linalg.norm(mixture_mobility(GRID.points, m)[1], axis=-1) for w, m in zip(WEIGHT, a, strict=True))
    np.testing.assert_allclose(density_resultant(fields), expected, atol=1e-10)
    assert mean_resultant(fields) == pytest.approx(GRID.integrate(density * expected) / GRID.integrate(density), abs=1e-12)
    mass = (density * GRID.cell_area[:, None]).ravel()
    tokens = TokenOperator("attention", 1, 1e-12)(GRID.points.reshape(-1, 3), mass, heads)
    np.testing.assert_allclose(tokens.resultant, expected.ravel(), atol=1e-9)
    table = {"matrices": a.tolist(), "weights": WEIGHT.tolist()}
    case = case_of(table, {"kind": kind}, 16, {"velocity": "gradient-flow"}, output={"fields": ["resultant_length"]})
    solver = build_solver(case)
    variables, _ = output_layout(case, solver)
    found = record(solver.snapshot(), variables)
    points, masses = solver.snapshot().sample
    assert found["resultant_length"].shape == masses.shape
    mean = np.sum(masses * found["resultant_length"]) / masses.sum()
    assert found["attention_resultant"] == pytest.approx(mean, rel=1e-12)
    assert resultant_length(found["attention_kappa"]) == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize("nlat", [48, 96])
def test_mean_resultant_from_a_coarse_grid(nlat, monkeypatch):
    grid = GaussGrid(nlat)
    for kappa in (6.0, 60.0):
        density = 0.5 * vmf(grid.points, MU, kappa) + 0.5 * vmf(grid.points, -MU, kappa)
        fields = AttentionOperator(grid, "attention", 1, 1e-12, two_point=True)(density, Heads(LOGITS, WEIGHT))
        found = mean_resultant(fields)
        monkeypatch.setattr("sphereflow.variational.RESULTANT_GRIDS", ())
        assert found == pytest.approx(mean_resultant(fields), abs=1e-5)
        monkeypatch.undo()


def test_attention_to_one_cluster_is_sharp_and_to_all_directions_alike_is_none():
    # One token sees itself alone.
    one = TokenOperator()(MU[None], np.ones(1), Heads(np.eye(3)[None], np.ones(1)))
    assert one.resultant == pytest.approx([1.0]) and equivalent_kappa(float(one.resultant[0])) > 1e10
    pair = TokenOperator()(np.stack([MU, -MU]), np.full(2, 0.5), Heads(np.zeros((1, 3, 3)), np.ones(1)))
    assert np.abs(pair.resultant).max() < 1e-15


def test_variational_fields_at_the_tokens(tmp_path):
    heads = {"kind": "svflow", "kappa": 2.0, "posterior": "attention", "count": 2, "initial": "gaussian-symmetric"}
    model = {"experts": [{"mean": [0, 0, 1], "kappa": 2.0, "gate": [0, 0, 1.0]}, {"mean": [1, 0, 0], "kappa": 1.0}]}
    names = ["surprisal", "posterior_divergence", "resultant_length", "local_gate_entropy"]
    case = case_of(heads, {"kind": "particles", "count": 30, "dt": 0.1}, model=model,
                   output={"fields": names, "every": 0.2})  # fmt: skip
    with run(case, tmp_path / "run.nc") as found:
        assert "position" not in found
        scalars = ("marginal_nll", "variational_gap", "attention_resultant", "gate_entropy")
        for name, scalar in zip(names, scalars, strict=True):
            assert found[name].dims == ("t", "particle") and found[name].shape == (3, 30)
            assert np.ptp(found[name].values) > 1e-3
            np.testing.assert_allclose((found[name] * found.particle_weight).sum("particle"), found[scalar], rtol=1e-12)


@pytest.mark.parametrize("solver", [{"kind": "particles", "count": 30, "dt": 0.1}, {}])
def test_gates_in_the_file_add_up_to_the_usage(solver, tmp_path):
    model = {"experts": [{"mean": [0, 0, 1], "kappa": 2.0, "gate": [0, 0, 1.0]}, {"mean": [1, 0, 0], "kappa": 1.0}]}
    case = case_of({"initial": "identity"}, solver, model=model, output={"fields": ["density", "gates"], "every": 0.2}
                   if not solver else {"fields": ["position", "gates"], "every": 0.2})  # fmt: skip
    with run(case, tmp_path / "run.nc") as found:
        inside = ("particle",) if solver else ("lat", "lon")
        mass = found.particle_weight if solver else found.density * found.cell_area
        assert found.gates.dims == ("t", "expert", *inside)
        np.testing.assert_allclose(found.gates.sum("expert"), 1, rtol=1e-14)
        usage = (found.gates * mass).sum(inside).transpose("t", "expert")
        np.testing.assert_allclose(usage, found.expert_usage, atol=1e-14 if solver else 2e-3)  # means of cells, not nodes
        if not solver:
            z = np.sin(np.radians(found.lat))
            np.testing.assert_allclose(found.gates[-1, 0], (1 / (1 + np.exp(-z))).broadcast_like(found.density[-1]), atol=1e-12)


def test_token_fields_need_what_they_are_made_of():
    plain = {"matrices": np.eye(3)[None].tolist()}
    tokens = {"kind": "particles", "count": 5}
    for name, reason in (("surprisal", "svflow"), ("local_gate_entropy", "experts"), ("potential", "position")):
        with pytest.raises(CaseError, match=f'"{name}" is not allowed.*{reason}'):
            case_of(plain, tokens, output={"fields": [name]})
    assert case_of(plain, tokens, output={"fields": ["resultant_length"]}).output.fields == ("resultant_length",)


def values_of_all_kinds(folder):
    rng = np.random.default_rng(11)
    logits, values = rng.normal(size=(2, 2, 3, 3))
    np.savez(folder / "values.npz", values=values)
    times = np.array([0.0, 0.15, 0.4])
    np.savez(folder / "table.npz", t=times, logits=rng.normal(size=(3, 2, 3, 3)), values=rng.normal(size=(3, 2, 3, 3)))
    given = {"matrices": logits.tolist(), "count": 2}
    return {
        "identity": {**given, "values": "identity"},
        "matrices": {**given, "values": values.tolist()},
        "file": {**given, "values": str(folder / "values.npz")},
        "table": {"schedule": "table", "file": str(folder / "table.npz")},
        "step": {"schedule": "table", "file": str(folder / "table.npz"), "interpolation": "step"},
        "svflow": {"kind": "svflow", "kappa": [1.0, 2.0], "posterior": "attention", "matrices": logits.tolist()},
    }


@pytest.mark.parametrize("kind", ["identity", "matrices", "file", "table", "step", "svflow"])
def test_general_values_converge_to_quadrature_tokens(kind, tmp_path):
    heads = values_of_all_kinds(tmp_path)[kind]
    reference, s = moments(case_of(heads, {"kind": "particles", "quadrature": True, "dt": 0.02}, 24))
    assert abs(s.ledger.residual(s.energy)) < 1e-6
    sizes, errors = (16, 32), []
    for nlat in sizes:
        found, s = moments(case_of(heads, nlat=nlat))
        errors.append(np.abs(found - reference).max())
        assert s.mass == pytest.approx(1, abs=1e-13) and s.density.min() >= 0
        assert abs(s.ledger.residual(s.energy)) < 1e-4
    assert errors[-1] < 2e-3
    assert fitted_order(sizes, errors) > 1.4


def test_sharp_density_stays_positive_and_keeps_its_mass_under_general_values():
    grid = GaussGrid(16)
    values = [[[0, 9, 0], [-9, 0, 0], [0, 0, 0]], [[0, 0, 5], [0, 1, 0], [7, 0, 0]]]
    case = case_of({"matrices": LOGITS.tolist(), "values": values})
    solver = build_solver(case)
    solver.density = cell_means(grid, vmf(grid.points, MU, 200.0))
    solver.density = np.where(solver.density < 1e-6, 0.0, solver.density)
    solver.density /= solver.mass
    solver._fields = None
    for _ in range(15):
        solver.advance(1.0)
        assert solver.density.min() >= -1e-15 * solver.density.max()  # zero, as far as fluxes of that size round
        assert solver.mass == pytest.approx(1, abs=1e-13)


BAD_HEADS = [
    ({"kind": "svflow"}, 'heads.kappa: missing; must be given with kind = "svflow"'),
    ({"kind": "svflow", "kappa": -1.0}, "heads.kappa: -1.0 is not allowed; must be >= 0"),
    ({"kind": "svflow", "kappa": [1.0, -2.0]}, r"heads.kappa\[1\]: -2.0 is not allowed; must be >= 0"),
    ({"kind": "svflow", "kappa": [1.0, 2.0], "count": 3}, "heads.kappa: 2 concentrations are not allowed; must be 3"),
    ({"kind": "svflow", "kappa": 1.0, "posterior": "exat"}, 'heads.posterior: "exat" .* one of exact, attention; did you mean'),
    ({"kind": "svflow", "kappa": 1.0, "initial": "zero"}, 'heads.initial: "zero" is not allowed with posterior = "exact"'),
    ({"kind": "svflow", "kappa": 1.0, "schedule": "oscillating"}, 'heads.schedule: .* must be "frozen": kappa is constant'),
    ({"kind": "svflow", "kappa": 1.0, "values": "identity"}, "heads.values: .* the key must be removed, V = kappa I"),
    ({"kappa": 1.0}, 'heads.kappa: 1.0 is not allowed with kind = "attention"'),
    ({"kind": "svlow", "kappa": 1.0}, 'heads.kind: "svlow" is not allowed; .* did you mean svflow'),
    ({"matrices": [[[1, 2], [3, 4]]]}, r"heads.matrices\[0\]: .* must be a 3x3 matrix"),
    ({"count": 2, "values": [[[1, 0, 0], [0, 1, 0], [0, 0, 1]]]}, "heads.values: 1 3x3 matrices are not allowed; must be 2"),
]


@pytest.mark.parametrize(("heads", "message"), BAD_HEADS)
def test_bad_heads_are_named(heads, message):
    with pytest.raises(CaseError, match=message):
        case_of(heads)


def test_values_in_a_file_that_do_not_fit_d_and_the_heads_name_both_shapes(tmp_path):
    np.savez(tmp_path / "v.npz", values=np.ones((3, 3, 3)))
    case = case_of({"count": 2, "values": str(tmp_path / "v.npz")})
    with pytest.raises(CaseError, match=r"array 'values' has shape \(3, 3, 3\); expected \(2, 3, 3\)"):
        build_solver(case)


def test_direction_velocity_and_minimising_movements_of_svflow():
    heads = {"kind": "svflow", "kappa": 1.0}
    with pytest.raises(CaseError, match='model.direction: "descend" is not allowed with heads.kind = "svflow"'):
        case_of(heads, model={"direction": "descend"})
    with pytest.raises(CaseError, match='model.velocity: "unnormalized" is not allowed with heads.kind = "svflow"'):
        case_of(heads, model={"velocity": "unnormalized"})
    with pytest.raises(CaseError, match="follow no energy that a step could minimise"):
        case_of({**heads, "posterior": "attention"}, {"kind": "minimizing-movement"})
    with pytest.raises(CaseError, match='output.fields: "surprisal" is not allowed with heads.kind = "attention"'):
        case_of({}, output={"fields": ["surprisal"]})
    for name in ("local_gate_entropy", "gates"):
        with pytest.raises(CaseError, match=f'output.fields: "{name}" is not allowed without experts'):
            case_of({}, output={"fields": [name]})
