"""Tokens on the sphere S^{d-1}: the particle form of the model, for any dimension d >= 2.

A set of tokens x_i with weights p_i is the measure sum_i p_i delta_{x_i}; put into the model of `sphereflow.attention`
it gives the system of ordinary differential equations dx_i/dt = v(x_i).

=============== ==========================================================================================
``mobility``    head mobilities and softmax means at the tokens: kernel expansion on S^2, direct sum anywhere
``fields``      velocity, energy and their rates of a token set
``sampling``    initial tokens: random draws from a density, files, quadrature nodes
``solver``      RK4 or Euler steps with normalisation, under the heads of a weight path
=============== ==========================================================================================
"""

from sphereflow.particles.fields import TokenFields, TokenOperator
from sphereflow.particles.mobility import TokenMeasure
from sphereflow.particles.sampling import initial_tokens, quadrature_tokens
from sphereflow.particles.solver import SCHEMES, ParticleSnapshot, ParticleSolver

__all__ = [
    "SCHEMES",
    "ParticleSnapshot",
    "ParticleSolver",
    "TokenFields",
    "TokenMeasure",
    "TokenOperator",
    "initial_tokens",
    "quadrature_tokens",
]
