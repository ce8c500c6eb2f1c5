"""States and folders for the tests of checkpoints."""

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from pax_compat import checkpoints
from pax_compat.nested_map import NestedMap


@flax.struct.dataclass
class TrainState:
  step: jax.Array
  params: NestedMap
  opt_state: optax.OptState
  key: jax.Array
  plain: int


def make_state(seed=0, dims=8) -> TrainState:
  params = NestedMap(
    lm=NestedMap(w=jax.random.normal(jax.random.key(seed), (4, dims))),
    scale=jnp.full((dims,), seed, jnp.bfloat16),
    empty=jnp.zeros((0, 3)),
  )
  return TrainState(
    step=jnp.int32(seed),
    params=params,
    opt_state=optax.adam(1e-3).init(params),
    key=jax.random.split(jax.random.key(seed), 2),
    plain=seed,
  )


def target_of(state):
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])

  def abstract(x):
    return jax.ShapeDtypeStruct(
      jnp.shape(x), jnp.result_type(x), sharding=device
    )

  return jax.tree.map(abstract, state)


def assert_same(got, want):
  assert jax.tree.structure(got) == jax.tree.structure(want)
  for path, leaf in checkpoints.state_paths(want).items():
    other = checkpoints.state_paths(got)[path]
    assert other.dtype == jnp.result_type(leaf), path
    if jnp.issubdtype(other.dtype, jax.dtypes.prng_key):
      leaf, other = jax.random.key_data(leaf), jax.random.key_data(other)
    np.testing.assert_array_equal(np.asarray(other), np.asarray(leaf), path)


def save_steps(folder, *steps, max_to_keep=None):
  """Saves one checkpoint for each step and closes."""
  checkpointer = checkpoints.Checkpointer(folder, max_to_keep=max_to_keep)
  for step in steps:
    assert checkpointer.save(step, make_state(step), {'position': step * 10})
  checkpointer.close()


def open_folder(folder, **kwargs):
  return checkpoints.Checkpointer(folder, **({'max_to_keep': None} | kwargs))
