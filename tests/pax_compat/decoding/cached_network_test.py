"""Decode states of other hypotheses, against their rows in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer
from pax_compat.decoding.cached_network import CachedNetwork
from pax_compat.layer_core.decode_states import SharedState, is_shared
from pax_compat.layers import models
from pax_compat.layers.transformers import stacked_transformers

ROWS, BEAMS, LENGTH, FIRST = 2, 3, 6, 2
HYPS = np.array([[2, 2, 0], [1, 0, 2]])


class _States(base_layer.BaseLayer):
  """Has a state of each kind."""

  def init_states(self, rows, length):
    self.update_decode_state('time_step', jnp.zeros([], int))
    self.update_decode_state('source', jnp.zeros([rows, 5]), shared=True)
    self.update_decode_state('cache', jnp.zeros([rows, length, 4]))
    self.update_decode_state('time_major', jnp.zeros([length, rows]))
    self.update_decode_state('halves', jnp.zeros([rows, length // 2]))
    self.update_decode_state('recurrent', jnp.zeros([4, rows]))


def network_of_states(rows=ROWS):
  """Returns a network that has a state of each kind."""
  layer = _States.config().Instantiate()
  return CachedNetwork(
    layer.bind({}),
    lambda layer, length, repeats: layer.init_states(rows * repeats, length),
    lambda layer, ids: ids,
  )


def _states(network):
  """Returns random states, the same before `FIRST` in all hypotheses."""
  rng = np.random.default_rng(0)
  states = jax.tree.map(
    lambda x: rng.normal(size=x.shape), network.init_states(LENGTH, BEAMS)
  )
  cache, time_major = states['cache'], states['time_major']
  cache[:, :FIRST] = np.repeat(cache[::BEAMS, :FIRST], BEAMS, axis=0)
  time_major[:FIRST] = np.repeat(time_major[:FIRST, ::BEAMS], BEAMS, axis=1)
  return states


@pytest.mark.parametrize('first', [0, FIRST])
def test_states_of_other_hypotheses(first):
  network = network_of_states()
  states = _states(network)
  got = network.settled(network.reordered(states, HYPS, first), first)
  rows = (np.arange(ROWS)[:, None] * BEAMS + HYPS).ravel()
  for name, axis in (
    ('cache', 0),
    ('time_major', 1),
    ('halves', 0),
    ('recurrent', 1),
  ):
    want = np.take(states[name], rows, axis=axis)
    np.testing.assert_array_equal(got[name], np.float32(want), err_msg=name)
  # It would be others if it were moved.
  assert got['source'].value is states['source'].value
  assert got['time_step'] is states['time_step']


def test_only_decoded_positions_are_moved():
  network = network_of_states()
  _, moved = network.reordered(_states(network), HYPS, FIRST)
  shapes = sorted(x.shape for x in moved if x is not None)
  assert shapes == [(LENGTH - FIRST, 6), (6, LENGTH - FIRST, 4)]


def _gathered(jaxpr):
  """Yields the shapes of all arrays of which rows are gathered."""
  for eqn in jaxpr.eqns:
    if eqn.primitive.name == 'gather':
      yield eqn.invars[0].aval.shape
    for value in eqn.params.values():
      inner = getattr(value, 'jaxpr', None)
      if inner is not None:
        yield from _gathered(inner)


@pytest.mark.parametrize('repeated', [False, True])
def test_the_cached_source_is_left_in_place(repeated):
  sources = 11
  config = models.SequenceModel.config().model_tpl.set(model_dims=8)
  config.softmax_tpl.num_classes = 5
  for side in ('encoder', 'decoder'):
    stack = stacked_transformers.StackedTransformer.config(
      num_layers=1, hidden_dims=8, num_heads=2
    )
    if repeated:
      stack = stacked_transformers.StackedTransformerRepeated.config(
        block=stack, x_times=2
      )
    setattr(config, f'{side}_stacked_transformer_tpl', stack)
  layer = config.Instantiate()
  ids, paddings = np.ones([ROWS, sources], int), np.zeros([ROWS, sources])

  variables = jax.eval_shape(
    lambda: base_layer.unbox(
      layer.init(
        {base_layer.PARAMS: jax.random.key(0)}, ids, paddings, ids, paddings
      )
    )
  )
  found = {}

  def reorder(variables, ids, paddings):
    network = CachedNetwork(
      layer.bind(variables),
      lambda model, length, repeats: model.init_states(
        jnp.repeat(ids, repeats, axis=0),
        jnp.repeat(paddings, repeats, axis=0),
        max_length=length,
      ),
      lambda model, ids: ids,
    )
    found['states'] = network.init_states(LENGTH, BEAMS)
    return network.reordered(found['states'], HYPS)

  jaxpr = jax.make_jaxpr(reorder)(variables, ids, paddings)
  marked = [
    state
    for state in jax.tree.leaves(found['states'], is_leaf=is_shared)
    if isinstance(state, SharedState)
  ]
  assert len(marked) == 3, 'keys, values and paddings'
  assert all(sources in state.value.shape for state in marked)
  gathered = list(_gathered(jaxpr.jaxpr))
  assert sum(LENGTH in shape for shape in gathered) == 2, 'keys and values'
  assert not any(sources in shape for shape in gathered)
