r"""Minimising movements: implicit steps of the gradient flow in the metric weighted with the effective mobility.

One step of length tau from rho^n, with the weights at the step's end and the effective mobility b of rho^n,

    rho^{n+1} = argmin  W_b^2(rho, rho^n) / (2 tau) + F(rho),        F = -s E,                                      (1)

needs a distance that can be computed. This is how it is discretised and solved.

**Discretisation** (upwind variational finite volumes, "LJKO": Cances, Gallouet, Todeschi, arXiv:1907.08305). Cells K
of area a_K carry densities rho_K, which stand at the nodes; faces carry T_KL = l / (d b) (`graph`). For a potential
phi mass runs through a face at the rate T_KL rho (phi_K - phi_L), rho being the density of the higher cell. With one
implicit step of length tau,

    W_b^2 / (2 tau) = sup_phi  sum_K a_K (rho^n_K - rho_K) phi_K - tau/2 sum_KL T_KL rho_KL (phi_K - phi_L)^2,      (2)

a convex function of rho. E is the quadrature 1/2 sum a_K rho_K xi_K, and xi its exact gradient (`spectrum`). Then (1)
reads

    a_K (rho_K - rho^n_K) + tau sum_L T_KL [rho_K (phi_K - phi_L)^+ - rho_L (phi_L - phi_K)^+] = 0                  (3)
    a_K phi_K + tau/2 sum_L T_KL ((phi_K - phi_L)^+)^2 <= a_K f_K,   equality where rho_K > 0,   f = dF/drho        (4)

and at the minimum W_b^2 / (2 tau) = tau/2 sum T rho (phi_K - phi_L)^2 (`movement_cost`). Staying at rho^n costs
nothing, so that

    F(rho^{n+1}) + W_b^2 / (2 tau) <= F(rho^n);                                                                     (5)

the difference of the sides is the step's slack. For small steps it is as large as the cost (dF/dt = -G^2, and the cost
is G^2 tau / 2); testing (4) with rho^n shows that it is never below tau/2 sum T rho^n (phi_K - phi_L)^2.

**Convexity.** F = 1/2 sum sigma z^2 in the eigenvectors of the kernel, sigma = -s lambda. The terms with sigma < 0 are
concave. Replaced by their tangents at rho^n they give a function F~ that lies above F, touches it at rho^n and is
convex: (5) holds for the minimiser of F~ too, for any tau. So f = V_+ (sigma_+ z) + V_- (sigma_- z^n), which is F's
gradient to first order in tau.

**No complementarity is left.** With equality everywhere, (4) is an implicit step of a Hamilton-Jacobi equation. It has
exactly one solution phi(f), the largest function that satisfies the inequality, and given phi (3) is a linear system
P(phi) rho = a rho^n with an M-matrix P: rho >= 0 whatever phi is, and of the same mass since the columns of P add up
to a. A pair that satisfies (3) and (4) with equality satisfies the conditions with inequality, which for a convex
problem are sufficient. (There is such a pair: rho -> phi(f(rho)) -> rho maps the densities of mass 1 into themselves.)
The constraint rho >= 0 never has to be looked at.

**No matrix is left to factorise.** In (4) a cell depends on its lower neighbours only, in (3) on its higher ones: in
the order of phi both are triangular. phi itself is found in one pass, smallest value first, and rho in a pass the
other way (`marching`). The derivative of (4) is P^T, solved by the same substitution.

**The dual problem** has the dimension r of the convex part alone, a few hundred whatever the grid. Let eta be
coordinates of a trial density, eta = sqrt(sigma_+) z_+, and f(eta) = V_+ sqrt(sigma_+) eta + V_- sigma_- z^n. Then

    D(eta) = sum_K a_K rho^n_K phi_K(f(eta)) - |eta|^2 / 2,        grad D = sqrt(sigma_+) z_+(rho(eta)) - eta,      (6)

is concave, because phi(f) is, as the largest of sub-solutions. Up to a constant its maximum is the minimum of (1), and
the difference to the value of the feasible rho(eta), the duality gap, is exactly |grad D|^2 / 2: a step knows how far
it is from its minimum. The second derivative is that of a symmetric positive definite operator,

    -D'' = 1 + U^T a P^{-1} L P^{-T} a U,        U = V_+ sqrt(sigma_+),  L = stiffness matrix of tau T rho_KL,      (7)

with eigenvalues 1 + tau (rates of the flow): conjugate gradients need few iterations, each of two substitutions and
two transforms. D has a Lipschitz gradient and a curvature of at least 1, so Newton's method with a line search
converges from anywhere; (3), (4), mass and sign hold to rounding in every iterate. If F is concave (ascending,
positive semi-definite heads) r = 0 and a step is one march and one substitution.

**inner_steps = k** composes the distance of k linearised ones, min sum_j W_j^2(rho_j, rho_{j-1}) k / (2 tau): k levels
of (4) from the movement's end to its start, k levels of (3) back; everything else stays. (2) is k = 1. The steps stay
of first order in tau; what becomes sharper is the distance of a long step.

References: arXiv:1907.08305 for (2) to (4); Sethian, A fast marching level set method (1996), for the one-pass
solution.
"""

from sphereflow.movement.graph import CellGraph, cell_graph
from sphereflow.movement.spectrum import KernelSpectrum, resolved_degree
from sphereflow.movement.step import DualProblem, Movement, StepSettings, minimise

__all__ = [
    "CellGraph",
    "DualProblem",
    "KernelSpectrum",
    "Movement",
    "StepSettings",
    "cell_graph",
    "minimise",
    "resolved_degree",
]
