"""Steps of an optimizer, for comparison with a formula in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

STEPS = 3
RATE = 0.1
SHAPES = {
  'scalar': (),
  'bias': (3,),
  'small': (2, 3),
  'matrix': (5, 4),
  'heads': (4, 2, 6),
}


def weights() -> dict[str, np.ndarray]:
  """Returns initial weights by name."""
  rng = np.random.default_rng(1)
  return {k: _float32(rng.normal(size=s)) for k, s in SHAPES.items()}


def gradients(steps: int = STEPS) -> list[dict[str, np.ndarray]]:
  """Returns gradients of each step, some small enough for epsilon to matter."""
  rng = np.random.default_rng(2)
  return [
    {
      k: _float32(10.0 ** -(i % 3) * rng.normal(size=s))
      for i, (k, s) in enumerate(SHAPES.items())
    }
    for _ in range(steps)
  ]


def _float32(x) -> np.ndarray:
  return np.asarray(x, np.float32)


def run(config, steps: int = STEPS) -> list[dict[str, np.ndarray]]:
  """Returns the weights after each step of an optimizer."""
  return run_transformation(config.Instantiate().grad_transformation(), steps)


def run_transformation(transformation, steps: int = STEPS):
  """Returns the weights after each step of an optax transformation."""
  params = jax.tree.map(jnp.asarray, weights())
  state = transformation.init(params)
  update = jax.jit(transformation.update)
  history = []
  for gradient in gradients(steps):
    updates, state = update(gradient, state, params)
    params = optax.apply_updates(params, updates)
    history.append(jax.tree.map(np.asarray, params))
  return history


def assert_steps(config, formula, steps: int = STEPS, tolerance: float = 1e-5):
  """Fails unless an optimizer makes the steps of a formula.

  Args:
    config: of the optimizer.
    formula: a function of a weight's name, its initial value and gradients,
      in float64, that yields its value after each step.
    steps: how many.
    tolerance: relative to the largest value of a weight.
  """
  history, given = run(config, steps), gradients(steps)
  for name, first in weights().items():
    own = [np.float64(g[name]) for g in given]
    expected = list(formula(name, np.float64(first), own))
    assert len(expected) == steps
    for step, want in enumerate(expected):
      error = np.max(np.abs(history[step][name] - want)) / np.max(np.abs(want))
      assert error <= tolerance, f'{name} after step {step}: {error:.3g}'
    assert np.max(np.abs(expected[-1] - first)) > 10 * tolerance, name


def rms(x) -> float:
  """Returns the root of the mean of squares."""
  return np.sqrt(np.mean(np.square(x)))
