"""Fixtures shared by all tests."""

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def floating_point_errors_raise():
    """Let division by zero, overflow and invalid operations fail the test that causes them."""
    with np.errstate(all="raise", under="ignore"):
        yield
