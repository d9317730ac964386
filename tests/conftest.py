"""Fixtures shared by all tests, and what becomes of tests that need the transform library shtns."""

import importlib.util
import os

import numba
import numpy as np
import pytest

REQUIRE_SHTNS = "SPHEREFLOW_REQUIRE_SHTNS"


def pytest_runtest_setup(item):
    """Without shtns, skip the tests marked so; fail them where the environment says that it must be there."""
    if item.get_closest_marker("torch") is not None and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    if item.get_closest_marker("shtns") is None or importlib.util.find_spec("shtns") is not None:
        return
    if os.environ.get(REQUIRE_SHTNS, "0") not in ("", "0"):
        pytest.fail(f"shtns is not installed, but {REQUIRE_SHTNS} asks for it", pytrace=False)
    pytest.skip("shtns is not installed")


@pytest.fixture(autouse=True)
def floating_point_errors_raise():
    """Let division by zero, overflow and invalid operations fail the test that causes them."""
    with np.errstate(all="raise", under="ignore"):
        yield


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Compiled loops wait actively for their threads: on a busy machine more than one thread makes tests crawl."""
    numba.set_num_threads(1)
