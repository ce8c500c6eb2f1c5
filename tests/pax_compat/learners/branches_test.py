"""Conditional computation within a step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat.learners import branches


def _either(condition, x):
  return jax.jit(
    lambda condition, x: branches.either(
      condition, lambda: {'x': x * 2, 'n': jnp.int32(1)}
    )
  )(condition, x)


BACKENDS = pytest.mark.parametrize('backend', ['cpu', 'gpu'])


@BACKENDS
@pytest.mark.parametrize('condition', [True, False])
def test_without_the_condition_values_are_zero(monkeypatch, backend, condition):
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)
  got = _either(condition, np.float32([1, np.nan]))
  want = [2, np.nan] if condition else [0, 0]
  np.testing.assert_array_equal(got['x'], np.float32(want))
  assert got['n'] == condition and got['n'].dtype == np.int32


@BACKENDS
@pytest.mark.parametrize('condition', [True, False])
def test_either_of_two_branches(monkeypatch, backend, condition):
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)
  x = jnp.arange(3)
  got = branches.either(condition, lambda: (x, -x), lambda: (x + 5, x))
  want = (x, -x) if condition else (x + 5, x)
  jax.tree.map(np.testing.assert_array_equal, got, want)


def test_on_a_cpu_donated_arrays_are_updated_in_place():
  """Although a norm reads them before, and a step may be skipped."""
  size = 1_000_000

  def step(x, y, due, moves):
    def new():
      z = 0.9 * y + jnp.sin(x)
      return x - z / jnp.sqrt(1 + z * z), z

    norms = branches.either(due, lambda: {'norm': jnp.sum(jnp.square(x))})
    moves, factor = branches.after(norms, (moves, jnp.float32(1)))
    x, y = branches.either(moves, new, lambda: (x, y))
    return x * factor, y, norms

  x = jnp.ones(size)
  compiled = (
    jax.jit(step, donate_argnums=(0, 1)).lower(x, x + 1, True, True).compile()
  )
  assert compiled.memory_analysis().temp_size_in_bytes < size
  for due, moves in ((True, True), (False, False)):
    new, _, norms = compiled(jnp.ones(size), jnp.ones(size), due, moves)
    assert norms['norm'] == (size if due else 0)
    assert (new[0] == 1) == (not moves)


def test_after_no_norms_arrays_are_unchanged(monkeypatch):
  arrays = (jnp.ones(2), True)
  assert branches.after({}, arrays) is arrays
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  assert branches.after({'a': jnp.ones([])}, arrays) is arrays


def test_after_norms_values_are_unchanged():
  norms = {'a': jnp.float32(np.nan), 'b': jnp.float32(3)}
  got = branches.after(norms, {'x': jnp.ones(2), 'ok': jnp.array(True)})
  np.testing.assert_array_equal(got['x'], np.ones(2))
  assert got['ok'].dtype == bool and got['ok']
