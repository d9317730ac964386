"""One minimising movement: the one-pass solver, the kernel's spectrum, the dual problem, the discrete inequality."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.sparse import coo_array
from scipy.sparse.linalg import splu, spsolve

from sphereflow.errors import ConvergenceError, NumericalError
from sphereflow.grid import GaussGrid
from sphereflow.harmonics import get_transform
from sphereflow.movement import DualProblem, KernelSpectrum, StepSettings, cell_graph, marching, minimise
from sphereflow.movement.spectrum import complex_coefficients, kernel_blocks, real_coordinates

TIGHT = StepSettings(tolerance=1e-12)
EQUATION_SCALE = 1e-14


def smooth_density(grid, seed=0, contrast=1.5):
    rng = np.random.default_rng(seed)
    x = grid.points
    density = np.exp(contrast * (x @ rng.normal(size=3) + np.sin(3 * x @ rng.normal(size=3))))
    return density / grid.integrate(density)


def smooth_mobility(grid):
    return np.exp(grid.points @ np.array([0.3, -0.5, 0.8]))


def symmetric(seed, heads=1, scale=1.0):
    z = np.random.default_rng(seed).normal(size=(heads, 3, 3))
    return scale * (z + z.transpose(0, 2, 1)) / 2


def problem_of(grid, logits, direction, tau, density=None, inner_steps=1, tolerance=1e-5):
    graph = cell_graph(grid)
    spectrum = KernelSpectrum(grid, logits, np.full(len(logits), 1 / len(logits)), tolerance, "ducc0")
    density = smooth_density(grid) if density is None else density
    return DualProblem(graph, graph.conductance(smooth_mobility(grid)), density, tau, spectrum, direction, inner_steps)


def random_dual_point(problem, seed=1, size=0.1):
    start = problem.root * problem.start
    return start + size * np.linalg.norm(start) * np.random.default_rng(seed).normal(size=start.size) * (
        problem.root > 0
    )


# ------------------------------------------------------------------------------------------------------- one-pass loops
def marched(problem, data):
    graph, n = problem.graph, data.size
    phi, order, rate, diagonal = np.empty(n), np.empty(n, np.int64), np.empty((n, 4)), np.empty(n)
    marching.march(data, graph.neighbour, problem.scaled, graph.area, phi, order)
    marching.outflow_rates(phi, graph.neighbour, problem.scaled, graph.area, rate, diagonal)
    return phi, order, rate, diagonal


@pytest.mark.parametrize("tau", [1e-3, 1.0, 100.0])
def test_march_solves_the_hamilton_jacobi_equation_in_one_pass(tau):
    grid = GaussGrid(16)
    problem = problem_of(grid, symmetric(0), -1, tau)
    data = np.random.default_rng(0).normal(size=grid.nlat * grid.nlon)
    phi, order, *_ = marched(problem, data)
    drop = np.maximum(phi[:, None] - phi[problem.graph.neighbour], 0.0)
    loss = 0.5 * np.sum(problem.scaled * drop**2, axis=1) / problem.graph.area
    assert np.abs(phi + loss - data).max() <= 1e-12 * (1 + loss.max())
    assert np.all(np.diff(phi[order]) >= 0) and np.array_equal(np.sort(order), np.arange(data.size))
    assert loss.max() > 0.1 * tau / (1 + tau)  # not the trivial case phi = data


def test_substitutions_solve_the_sparse_systems_and_keep_mass_and_sign():
    grid = GaussGrid(12)
    problem = problem_of(grid, symmetric(0), -1, 2.0)
    graph, n = problem.graph, grid.nlat * grid.nlon
    phi, order, rate, diagonal = marched(problem, np.random.default_rng(1).normal(size=n))
    cell = np.repeat(np.arange(n), 4)
    matrix = coo_array((-np.maximum(rate, 0).ravel(), (graph.neighbour.ravel(), cell)), shape=(n, n)).tocsr()
    matrix.setdiag(diagonal)
    right = np.random.default_rng(2).random(n) ** 8
    right[right < 0.1] = 0.0
    down, up = np.empty(n), np.empty(n)
    marching.downhill(right, order, graph.neighbour, rate, diagonal, down)
    marching.uphill(right, order, graph.neighbour, rate, diagonal, up)
    np.testing.assert_allclose(down, spsolve(matrix, right), rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(up, spsolve(matrix.T.tocsr(), right), rtol=1e-11, atol=1e-14)
    assert down.min() >= 0 and down @ graph.area == pytest.approx(right.sum(), rel=1e-14)


def test_conductances_are_those_of_the_faces_and_zero_across_the_poles():
    grid = GaussGrid(10)
    graph = cell_graph(grid)
    assert graph.area.sum() == pytest.approx(4 * np.pi, rel=1e-14)
    b = smooth_mobility(grid)
    conductance = graph.conductance(b).reshape(*grid.shape, 4)
    assert not conductance[0, :, 2].any() and not conductance[-1, :, 3].any()
    np.testing.assert_array_equal(conductance[:-1, :, 3], conductance[1:, :, 2])
    np.testing.assert_array_equal(conductance[:, :, 1], np.roll(conductance[:, :, 0], -1, axis=1))
    i, j = 3, 5
    mean = (b[i, j + 1] - b[i, j]) / np.log(b[i, j + 1] / b[i, j])
    faces = grid.colatitude_face
    assert conductance[i, j, 1] == pytest.approx(
        (faces[i + 1] - faces[i]) / (np.sin(grid.colatitude[i]) * grid.dlon * mean), rel=1e-9
    )
    mean = (b[i + 1, j] - b[i, j]) / np.log(b[i + 1, j] / b[i, j])
    assert conductance[i, j, 3] == pytest.approx(
        np.sin(faces[i + 1]) * grid.dlon / ((grid.colatitude[i + 1] - grid.colatitude[i]) * mean), rel=1e-9
    )


# ------------------------------------------------------------------------------------------------ the kernel's spectrum
@pytest.mark.parametrize("symmetrise", [True, False])
def test_spectrum_has_the_energy_and_first_variation_of_the_double_sum(symmetrise):
    grid = GaussGrid(24)
    logits = 0.7 * np.random.default_rng(3).normal(size=(2, 3, 3))
    logits = logits + logits.transpose(0, 2, 1) if symmetrise else logits
    weight = np.array([0.3, 0.7])
    spectrum = KernelSpectrum(grid, logits, weight, 1e-12, "ducc0")
    density = smooth_density(grid)
    z = spectrum.coordinates(density)
    x = grid.points.reshape(-1, 3)
    kernel = sum(w * (np.exp(x @ a @ x.T) + np.exp(x @ a.T @ x.T)) / 2 for w, a in zip(weight, logits, strict=True))
    mass = (density * grid.cell_area[:, None]).ravel()
    assert spectrum.energy(z) == pytest.approx(0.5 * mass @ kernel @ mass, rel=1e-11)
    np.testing.assert_allclose(spectrum.first_variation(z).ravel(), kernel @ mass, rtol=1e-10)


def test_field_is_the_adjoint_of_coordinates_so_that_the_first_variation_is_the_exact_gradient():
    grid = GaussGrid(24)
    spectrum = KernelSpectrum(grid, symmetric(1, 2), np.array([0.5, 0.5]), 1e-6, "ducc0")
    rng = np.random.default_rng(0)
    rough, z = rng.random(grid.shape), rng.normal(size=spectrum.eigenvalue.size)
    assert grid.integrate(rough * spectrum.field(z)) == pytest.approx(spectrum.coordinates(rough) @ z, rel=1e-12)
    change = rng.normal(size=grid.shape)
    exact = grid.integrate(spectrum.first_variation(spectrum.coordinates(rough)) * change)
    plus, minus = (spectrum.energy(spectrum.coordinates(rough + h * change)) for h in (0.5, -0.5))
    assert plus - minus == pytest.approx(exact, rel=1e-11)  # a central difference is exact for a quadratic


@pytest.mark.parametrize("tolerance", [1e-4, 1e-8])
@pytest.mark.parametrize("eigenvalue", [[3.0, 1.0, 0.5], [3.0, 1.0, -4.0], [-4.0, -4.0, -4.0]])
def test_energy_of_one_cell_is_right_to_the_tolerance(eigenvalue, tolerance):
    """Where the kernel is smallest: a point mass has E = exp(x.Ax)/2, exp(-4)/2 here against exp(4) elsewhere."""
    grid, matrix = GaussGrid(32), np.diag(eigenvalue)
    spectrum = KernelSpectrum(grid, matrix[None], np.ones(1), tolerance, "ducc0")
    for i, j in ((0, 0), (7, 10), (15, 3)):
        density = np.zeros(grid.shape)
        density[i, j] = 1 / grid.cell_area[i]
        exact = 0.5 * np.exp(grid.points[i, j] @ matrix @ grid.points[i, j])
        assert spectrum.energy(spectrum.coordinates(density)) == pytest.approx(exact, rel=tolerance)


def test_real_coordinates_are_orthonormal():
    lmax = 6
    grid, transform = GaussGrid(10), get_transform(10, lmax, "ducc0")
    unit = np.eye((lmax + 1) ** 2)
    values = transform.synthesis(complex_coefficients(unit, lmax))
    gram = np.einsum("aij,bij,i->ab", values, values, grid.cell_area)
    np.testing.assert_allclose(gram, unit, atol=1e-13)
    np.testing.assert_allclose(real_coordinates(transform.analysis(values), lmax), unit, atol=1e-13)


def test_spectral_split_of_one_symmetric_head_is_the_closed_form():
    """exp(x.Ay) = e^{x.A+y} cosh(x.A-y) - e^{x.A+y} sinh(x.A-y): also (exp(x.|A|y) +- exp(x.Ay)) / 2."""
    rotation = np.linalg.qr(np.random.default_rng(5).normal(size=(3, 3)))[0]
    eigenvalue = np.array([1.5, 0.4, -2.0])
    matrix = rotation @ np.diag(eigenvalue) @ rotation.T
    absolute = rotation @ np.diag(np.abs(eigenvalue)) @ rotation.T
    one = np.ones(1)
    blocks = zip(kernel_blocks(matrix[None], one, 20), kernel_blocks(absolute[None], one, 20), strict=True)
    for (_, block), (_, of_absolute) in blocks:
        value, vector = np.linalg.eigh(block)
        positive = (vector * np.maximum(value, 0)) @ vector.T
        negative = (vector * np.maximum(-value, 0)) @ vector.T
        np.testing.assert_allclose(positive, (of_absolute + block) / 2, atol=1e-12)
        np.testing.assert_allclose(negative, (of_absolute - block) / 2, atol=1e-12)
        assert np.abs(negative).max() > 0.1


@pytest.mark.parametrize(("eigenvalue", "definite"), [([2, 1, 0.5], True), ([2, 1, 0], True), ([2, 1, -0.1], False)])
def test_kernel_is_positive_semi_definite_iff_the_matrix_is(eigenvalue, definite):
    spectrum = KernelSpectrum(GaussGrid(24), np.diag(eigenvalue)[None].astype(float), np.ones(1), 1e-10, "ducc0")
    assert (spectrum.eigenvalue.min() > -1e-13 * spectrum.eigenvalue.max()) == definite


def test_kernel_narrower_than_the_grid_is_refused_with_the_way_out():
    with pytest.raises(
        NumericalError, match=r"norm 9 .* degree \d+ .* 16 latitudes go up to 15; use a larger grid.nlat"
    ):
        KernelSpectrum(GaussGrid(16), 9 * np.eye(3)[None], np.ones(1), 1e-10, "ducc0")


# ----------------------------------------------------------------------------------------------------- the dual problem
@pytest.mark.parametrize("inner_steps", [1, 3])
def test_gradient_and_curvature_of_the_dual_are_derivatives(inner_steps):
    problem = problem_of(GaussGrid(12), symmetric(2, 2), -1, 0.7, inner_steps=inner_steps, tolerance=1e-5)
    eta = random_dual_point(problem)
    state, h = problem.evaluate(eta), 1e-5
    rng = np.random.default_rng(4)
    u, v = rng.normal(size=(2, eta.size)) * (problem.root > 0)
    plus, minus = problem.evaluate(eta + h * u), problem.evaluate(eta - h * u)
    assert (plus.value - minus.value) / (2 * h) == pytest.approx(state.gradient @ u, rel=1e-6)
    curved = problem.curvature(state, u)
    np.testing.assert_allclose((minus.gradient - plus.gradient) / (2 * h), curved, atol=1e-5 * np.abs(curved).max())
    assert v @ curved == pytest.approx(u @ problem.curvature(state, v), rel=1e-11)
    assert u @ curved > u @ u  # 1 + a positive operator
    assert np.linalg.norm(curved - u) > 0.01 * np.linalg.norm(u)


@pytest.mark.parametrize("inner_steps", [1, 2])
def test_duality_gap_is_half_the_squared_residual_at_any_point(inner_steps):
    problem = problem_of(GaussGrid(12), symmetric(2, 2), 1, 0.3, inner_steps=inner_steps, tolerance=1e-5)
    state = problem.evaluate(random_dual_point(problem))
    density = state.levels[-1].density.reshape(problem.shape)
    z = problem.spectrum.coordinates(density)
    convex = 0.5 * np.maximum(problem.sign, 0) @ z**2
    tangent = np.minimum(problem.sign, 0) * problem.start @ z
    assert convex + tangent + state.cost - state.value == pytest.approx(0.5 * state.residual**2, rel=1e-9)


def test_solution_satisfies_both_equations_everywhere():
    grid = GaussGrid(16)
    problem = problem_of(grid, symmetric(3, 2), -1, 1.0, tolerance=1e-6)
    movement = minimise(problem, TIGHT)
    level = problem.evaluate(problem.root * problem.spectrum.coordinates(movement.density)).levels[0]
    phi, rho, area, c = level.phi, movement.density.ravel(), problem.graph.area, problem.scaled
    drop = phi[:, None] - phi[problem.graph.neighbour]
    outflow = np.sum(
        c * (rho[:, None] * np.maximum(drop, 0) - rho[problem.graph.neighbour] * np.maximum(-drop, 0)), axis=1
    )
    assert np.abs(area * rho - problem.mass + outflow).max() <= 1e-11 * problem.mass.max()
    z = problem.spectrum.coordinates(movement.density)
    gradient = problem.spectrum.field(np.where(problem.implicit, problem.sign * z, problem.sign * problem.start))
    loss = 0.5 * np.sum(c * np.maximum(drop, 0) ** 2, axis=1) / area
    assert np.abs(phi + loss - gradient.ravel()).max() <= 1e-11 * np.abs(gradient).max()
    assert movement.cost == pytest.approx(0.25 * np.sum(c * np.maximum(drop, 0) ** 2 * 2 * rho[:, None]), rel=1e-11)


class RateObjective:
    """The primal objective of a step as a function of the outflow rates g >= 0 through each face in each direction.

    Any rates lead to a density, P(g) rho = a rho^n; energy plus 1/2 sum rho g^2 / c is minimised over them. Nothing but
    the graph is shared with the package: the kernel is written out and P is factorised. The unknowns are g / sqrt(c).
    """

    def __init__(self, problem):
        graph, self.mass, self.area = problem.graph, problem.mass, problem.graph.area
        self.source, self.slot = np.nonzero(problem.scaled)
        self.target, self.c = graph.neighbour[self.source, self.slot], problem.scaled[self.source, self.slot]
        basis = np.array([problem.spectrum.field(row).ravel() for row in np.eye(problem.root.size)])
        self.kernel = basis.T @ (np.maximum(problem.sign, 0)[:, None] * basis)
        self.tangent = problem.explicit_field.ravel()

    def unknowns_of(self, level):
        return np.maximum(level.rate[self.source, self.slot], 0.0) / np.sqrt(self.c)

    def __call__(self, unknowns):
        n, source, target = self.mass.size, self.source, self.target
        g = unknowns * np.sqrt(self.c)
        matrix = coo_array((-g, (target, source)), shape=(n, n)).tocsc()
        matrix.setdiag(self.area + np.bincount(source, g, n))
        factors = splu(matrix)
        density = factors.solve(self.mass)
        mass = density * self.area
        derivative = self.area * (self.kernel @ mass + self.tangent) + 0.5 * np.bincount(source, unknowns**2, n)
        price = factors.solve(derivative, trans="T")
        value = 0.5 * mass @ self.kernel @ mass + self.tangent @ mass + 0.5 * np.sum(density[source] * unknowns**2)
        return value, density[source] * (unknowns - np.sqrt(self.c) * (price[source] - price[target]))


@pytest.mark.parametrize(
    ("nlat", "direction", "eigenvalue", "tau"),
    [
        (8, -1, [1.0, 0.5, 0.2], 1.0),
        (8, 1, [1.0, 0.3, -1.2], 0.5),
        (16, -1, [2.0, 0.5, 1.0], 0.3),
        (16, 1, [1.5, 0.5, -1.0], 0.3),
    ],
)
def test_no_general_purpose_optimiser_finds_less(nlat, direction, eigenvalue, tau):
    """L-BFGS-B starts from our solution, and from the density at rest, from where it must come close."""
    grid = GaussGrid(nlat)
    density = smooth_density(grid, contrast=0.4)
    problem = problem_of(grid, np.diag(eigenvalue)[None], direction, tau, density, tolerance=1e-2)
    objective, movement = RateObjective(problem), minimise(problem, TIGHT)
    end = problem.spectrum.coordinates(movement.density)
    ours = objective.unknowns_of(problem.evaluate(problem.root * end).levels[0])
    value, gradient = objective(ours)
    at_rest = objective(np.zeros_like(ours))[0]
    assert value < at_rest - 0.5 * movement.cost
    assert np.abs(gradient[ours > 0]).max() <= 1e-10 * np.abs(objective(np.zeros_like(ours))[1]).max()
    assert gradient.min() >= -1e-10
    for start in (ours, np.zeros_like(ours)):
        found = minimize(
            objective, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * start.size,
            options={"maxiter": 500, "maxfun": 1000, "ftol": 0, "gtol": 1e-9, "maxcor": 30},
        )  # fmt: skip
        assert value <= found.fun + 1e-13 * abs(value)
    assert found.fun - value < 1e-9 * (at_rest - value)


# ---------------------------------------------------------------------------------------------- the discrete inequality
def check_step(problem, movement):
    """Sign, mass, and the inequality up to the duality gap and rounding."""
    assert movement.density.min() >= 0
    assert movement.density.ravel() @ problem.graph.area == pytest.approx(problem.mass.sum(), rel=1e-13)
    rounding = EQUATION_SCALE * problem.scale**2
    assert movement.gap <= 0.5 * (1e-9 * problem.scale) ** 2
    assert movement.cost >= 0
    drop = -problem.direction * (movement.energy_before - movement.energy)
    assert drop == pytest.approx(movement.slack + movement.cost, abs=10 * rounding)
    assert movement.slack >= -movement.gap - rounding


matrices = st.lists(st.floats(-1.5, 1.5), min_size=9, max_size=9).map(lambda v: np.array(v).reshape(3, 3))


@settings(max_examples=60, deadline=None)
@given(
    heads=st.lists(matrices, min_size=1, max_size=3),
    symmetrise=st.booleans(),
    direction=st.sampled_from([-1, 1]),
    log_tau=st.floats(-3, 1),
    inner_steps=st.integers(1, 2),
    seed=st.integers(0, 1000),
    contrast=st.floats(0, 8),
    empty=st.sampled_from([0.0, 0.5, 0.99]),
)
def test_inequality_sign_and_mass_hold_for_all_heads_data_and_steps(
    heads, symmetrise, direction, log_tau, inner_steps, seed, contrast, empty
):
    grid = GaussGrid(10)
    logits = np.array(heads)
    logits = (logits + logits.transpose(0, 2, 1)) / 2 if symmetrise else logits
    if np.linalg.norm(logits, ord=2, axis=(1, 2)).max() > 2:
        logits /= np.linalg.norm(logits, ord=2, axis=(1, 2)).max() / 2
    density = smooth_density(grid, seed, contrast)
    density[density < np.quantile(density, empty)] = 0.0
    density /= grid.integrate(density)
    for _ in range(2):
        problem = problem_of(grid, logits, direction, 10.0**log_tau, density, inner_steps, tolerance=1e-2)
        movement = minimise(problem, StepSettings(inner_steps=inner_steps))
        check_step(problem, movement)
        density = movement.density


@pytest.mark.parametrize("direction", [-1, 1])
def test_slack_is_at_least_the_cost_measured_with_the_old_density(direction):
    grid = GaussGrid(16)
    problem = problem_of(grid, symmetric(7, 2), direction, 0.2, tolerance=1e-5)
    movement = minimise(problem, TIGHT)
    eta = problem.root * problem.spectrum.coordinates(movement.density)
    level = problem.evaluate(eta).levels[0]
    old = marching.movement_cost(level.phi, problem.mass / problem.graph.area, problem.graph.neighbour, level.rate)
    assert movement.slack >= old > 0.3 * movement.cost


def test_cells_uphill_of_all_mass_stay_exactly_empty():
    grid = GaussGrid(16)
    density = np.zeros(grid.shape)
    density[7:9, 4:7] = 1.0
    density /= grid.integrate(density)
    problem = problem_of(grid, np.diag([1.0, 1.0, 0.5])[None], 1, 0.1, density)
    movement = minimise(problem, TIGHT)
    check_step(problem, movement)
    assert np.count_nonzero(movement.density == 0.0) > 400 and np.any(movement.density != density)


def test_uniform_density_does_not_move():
    grid = GaussGrid(16)
    problem = problem_of(grid, np.eye(3)[None], -1, 10.0, np.full(grid.shape, 1 / (4 * np.pi)), tolerance=1e-6)
    movement = minimise(problem, TIGHT)
    np.testing.assert_allclose(movement.density, 1 / (4 * np.pi), rtol=1e-10)
    assert movement.iterations == 0 and movement.cost < 1e-25


def test_more_inner_steps_shorten_the_distance_to_its_limit():
    """The costs of one movement with k linearised distances converge at first order in 1/k."""
    grid = GaussGrid(16)
    costs = []
    for k in (4, 8, 16, 32):
        problem = problem_of(grid, np.diag([1.0, 0.5, 0.2])[None], -1, 1.0, inner_steps=k, tolerance=1e-6)
        costs.append(minimise(problem, TIGHT).cost)
    change = np.diff(costs)
    ratios = change[:-1] / change[1:]
    assert np.all((ratios > 1.5) & (ratios < 2.5)), ratios


def test_failure_shows_the_history_of_the_residual():
    problem = problem_of(GaussGrid(16), symmetric(3, 2), -1, 1.0, tolerance=1e-6)
    with pytest.raises(ConvergenceError, match=r"no convergence in 1 Newton iterations, residuals \S+e-\d+ \S+e-\d+"):
        minimise(problem, StepSettings(limit=1))
