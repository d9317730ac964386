"""One pass in place of several: the same as numpy, on every number of threads, and NaN where anything is not finite."""

import numpy as np
import pytest

from sphereflow.passes import blend, extremes, masses, weighted_sum

RNG = np.random.default_rng(4)


@pytest.mark.parametrize("shape", [(1,), (7,), (16, 32)])
def test_blend(shape):
    x, y, rate = RNG.normal(size=(3, *shape))
    np.testing.assert_allclose(blend(0.75, x, 0.25, y, 0.1, rate), 0.75 * x + 0.25 * (y + 0.1 * rate), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_weighted_sum(size, count):
    values, weights = RNG.normal(size=(count, size)), RNG.normal(size=count)
    np.testing.assert_allclose(weighted_sum(weights, list(values)), weights @ values, rtol=1e-12, atol=1e-13)


def test_masses():
    new, middle, old = RNG.normal(size=(3, 8, 16))
    area = RNG.uniform(size=8)
    expected = [0.5 * area @ np.abs(change).sum(axis=1) for change in (new - old, new - 2 * middle + old)]
    assert masses(new, middle, old, area) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_extremes(bad):
    values = RNG.normal(size=(8, 16))
    assert extremes(values) == (values.min(), values.max())
    values[3, 5] = bad
    assert np.isnan(extremes(values)).all()
