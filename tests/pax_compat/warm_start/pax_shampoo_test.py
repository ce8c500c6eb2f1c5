"""What of Pax's Shampoo is read, and what is refused.

That runs go on from it with Pax's losses is in `continued_test`.
"""

import types

import jax
import numpy as np
import pytest

from pax_compat import errors, optimizers
from pax_compat.optimizers import distributed_shampoo
from pax_compat.warm_start import pax_shampoo

NODE = 'opt_states/0/no_prefix/2/stats/params/lm/w'
SHARDED = 'opt_states/0/no_prefix/0/stats'


def _state(arrays, block_size=4):
  arrays = {'mdl_vars/params/lm/w': np.zeros([6, 3]), **arrays}
  source = types.SimpleNamespace(
    path='run/checkpoint_3',
    arrays={name: x.shape for name, x in arrays.items()},
    opt_states=tuple(n for n in arrays if n.startswith('opt_states')),
    variables={
      name.removeprefix('mdl_vars/'): name
      for name in arrays
      if name.startswith('mdl_vars/')
    },
    region=lambda name, index: arrays[name][index],
  )
  config = optimizers.DistributedShampoo.config(
    block_size=block_size,
    best_effort_shape_interpretation=False,
    learning_rate=1.0,
    matrix_epsilon=0.5,
  )
  return pax_shampoo.ShampooState(source, config)


def _read(state, path, *shape):
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  like = jax.ShapeDtypeStruct(shape, np.float32, sharding=device)
  assembly = state.assembly(f'opt_state/optimizer/0/{path}', like)
  return None if assembly is None else np.asarray(assembly.read())


def test_matrices_of_blocks_are_beside_each_other():
  # Blocks [4, 3] and [2, 3], each with a matrix for each dimension.
  sizes = (4, 3, 2, 3)
  state = _state(
    {
      f'{NODE}/statistics/{i}': np.full([n, n], i + 1.0)
      for i, n in enumerate(sizes)
    }
  )
  found = _read(state, 'statistics/lm/w/0', 2, 4, 4)
  np.testing.assert_array_equal(found[0], np.full([4, 4], 1))
  beyond = np.diag([0, 0, 0.5, 0.5])
  beyond[:2, :2] = 3
  np.testing.assert_array_equal(found[1], beyond)
  found = _read(state, 'statistics/lm/w/1', 2, 3, 3)
  np.testing.assert_array_equal(found[:, 0, 0], [2, 4])
  # Others are missing, and errors are not kept.
  assert _read(state, 'roots/lm/w/0', 2, 4, 4) is None
  np.testing.assert_array_equal(_read(state, 'errors/lm/w/0', 2), [0, 0])


def test_sharded_matrices_follow_the_order_of_the_paths():
  names = ('lm/b', 'lm/w', 'lm/w2')
  state = _state(
    {
      **{f'mdl_vars/params/{n}': np.zeros([6, 3]) for n in names},
      **{
        f'{SHARDED}/local_stats/params/{n}/momentum/quantized': np.zeros([6, 3])
        for n in reversed(names)
      },
      f'{SHARDED}/global_stats/preconditioners': np.arange(12.0)[:, None, None]
      + np.zeros([6, 6]),
    }
  )
  found = _read(state, 'roots/lm/w/1', 2, 3, 3)
  np.testing.assert_array_equal(found[:, 0, 0], [5, 7])
  np.testing.assert_array_equal(found[:, 2, 2], [5, 7])
  found = _read(state, 'roots/lm/w2/0', 2, 4, 4)
  np.testing.assert_array_equal(found[:, 3, 3], [8, 1])


@pytest.mark.parametrize(
  'name', ['momentum/diagonal', 'statistics/0/quantized']
)
def test_quantized_state_is_refused(name):
  state = _state({f'{NODE}/{name}': np.zeros([3], np.int8)})
  with pytest.raises(errors.UserError, match='is quantized'):
    _read(state, 'momentum/lm/w', 6, 3)


def test_other_optimizers_have_none():
  adam = types.SimpleNamespace(optimizer=optimizers.Adam.config())
  assert pax_shampoo.optimizer_of(adam) is None
  wrapped = optimizers.ShardedStaticAccumulator.config(
    optimizer_tpl=distributed_shampoo.DistributedShampoo.config()
  )
  found = pax_shampoo.optimizer_of(types.SimpleNamespace(optimizer=wrapped))
  assert found is wrapped.optimizer_tpl
