"""What the tests of other libraries share."""

import pytest


@pytest.fixture
def x64():
    """JAX's 64-bit types, in the tests that ask for them alone."""
    import jax

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)
