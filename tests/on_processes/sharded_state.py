"""A program that saves and restores arrays sharded over four devices."""

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from pax_compat import checkpoints
from pax_compat.checkpoints import checksums
from pax_compat.processes import first_process

_VALUES = np.arange(64, dtype=np.float32).reshape(8, 8)


def save_and_restore(folder: str):
  """Prints the errors of a missing step and of a commit that fails."""
  assert jax.device_count() == 4
  index = jax.process_index()
  assert first_process.value_of(index + 5) == 5
  checkpointer = checkpoints.Checkpointer(folder, max_to_keep=1)
  for step in (1, 2):
    assert checkpointer.save(
      step, _state(_mesh(4, 1), P('x', 'y')), {'step': step}
    )
  checkpointer.wait()
  assert checkpointer.latest_step() == 2
  # Another mesh and other axes than it was saved with.
  example = _state(_mesh(2, 2), P('y', 'x'))
  target = jax.tree.map(
    lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding),
    example,
  )
  restored, extra = checkpointer.restore(2, target)
  assert extra == {'step': 2}
  _assert_same_shards(restored, example)
  assert restored['w'].addressable_shards[0].data.shape == (4, 4)
  try:
    checkpointer.restore(1, target)
  except Exception as e:
    print('MISSING', type(e).__name__)
  assert checkpointer.save(3, restored, {})
  # A commit that fails on process 0 is known to all.
  checkpointer.wait()
  of_files = checksums.of_files
  if index == 0:
    checksums.of_files = None
  checkpointer.save(4, restored, {})
  try:
    checkpointer.wait()
  except Exception as e:
    print('FAILED', type(e).__name__)
  checksums.of_files = of_files
  assert checkpointer.save(4, restored, {})
  checkpointer.close()


def _mesh(*shape: int) -> jax.sharding.Mesh:
  return jax.make_mesh(
    shape, ('x', 'y'), axis_types=(jax.sharding.AxisType.Auto,) * 2
  )


def _state(mesh: jax.sharding.Mesh, spec: P) -> dict[str, jax.Array]:
  def make():
    return {
      'w': jax.numpy.asarray(_VALUES),
      'keys': jax.random.split(jax.random.key(5), 8),
      'key': jax.random.key(6),
      'none': jax.numpy.zeros((0, 4)),
      'step': jax.numpy.int32(7),
    }

  by_path = {'w': spec, 'keys': P('x')}
  shardings = {
    k: NamedSharding(mesh, by_path.get(k, P())) for k in jax.eval_shape(make)
  }
  return jax.jit(make, out_shardings=shardings)()


def _assert_same_shards(restored, example):
  for name, array in restored.items():
    want = example[name]
    assert array.sharding.is_equivalent_to(want.sharding, array.ndim), name
    assert array.dtype == want.dtype, name
    if name.startswith('key'):
      array, want = jax.random.key_data(array), jax.random.key_data(want)
    for got, expected in zip(
      array.addressable_shards, want.addressable_shards, strict=True
    ):
      np.testing.assert_array_equal(got.data, expected.data, name)
