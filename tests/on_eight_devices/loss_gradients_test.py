"""Private gradients of a batch that is split over a mesh."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from pax_compat import errors, layers, learners, optimizers
from pax_compat.base_layer import PARAMS
from pax_compat.layers import embedding_softmax
from pax_compat.learners import sgf
from pax_compat.trainer import partitioning
from tests.pax_compat.trainer import tiny

_CLASSES = [
  sgf.DpSgdStochasticGradient,
  sgf.GhostClippingDpSgdStochasticGradient,
]


def _program(mesh, cls=sgf.DpSgdStochasticGradient):
  task = tiny.task()
  task.model.lm_tpl.separate_embedding_tpl = (
    embedding_softmax.Embedding.config()
  )
  task.train.learner.set(
    optimizer=optimizers.Sgd.config(learning_rate=1.0),
    stochastic_gradient=cls.config(
      l2_norm_clip=0.1,
      noise_multiplier=0.1,
      spmd_axis_name='data',
    ),
  )
  return tiny.make_program(task, mesh)


@pytest.mark.parametrize('cls', _CLASSES)
def test_a_mesh_makes_the_steps_of_one_device(cls):
  split, history = tiny.train(
    _program(partitioning.create_mesh(None, None), cls), 2
  )
  one, want = tiny.train(
    _program(jax.make_mesh([1], ['data'], (AxisType.Auto,)), cls), 2
  )
  expected = learners.by_path(one.mdl_vars[PARAMS])
  for path, weight in learners.by_path(split.mdl_vars[PARAMS]).items():
    np.testing.assert_allclose(weight, expected[path], rtol=1e-4, atol=1e-5)
  assert history[1]['dp_metrics/frac_clipped'] == 1
  np.testing.assert_allclose(history[1]['loss'], want[1]['loss'], rtol=1e-5)


def test_padding_rows_are_refused():
  program = _program(partitioning.create_mesh(None, None))
  with pytest.raises(errors.UserError, match='would count rows of padding'):
    program.put_to_train(tiny.batch(size=6))


def test_scales_of_8_bits_are_those_of_the_whole_batch():
  """On a mesh that splits the batch, and weights over two axes."""

  def weights(split, mesh):
    task = tiny.task(split=split)
    layer = (
      task.model.lm_tpl.stacked_transformer_tpl.transformer_layer_params_tpl
    )
    layer.tr_fflayer_tpl.fflayer_tpl.linear_tpl.einsum_tpl = (
      layers.Fp8EinsumOp.config(amax_history_length=4)
    )
    state, _ = tiny.train(tiny.make_program(task, mesh), 3)
    return learners.by_path(state.mdl_vars[PARAMS])

  one = weights(False, jax.make_mesh([1], ['data'], (AxisType.Auto,)))
  split = weights(True, partitioning.create_mesh(tiny.MESH, tiny.MESH_AXES))
  scales = [path for path in one if '/einsum/' in path]
  assert len(scales) == 12
  for path in scales:
    np.testing.assert_allclose(split[path], one[path], rtol=1e-3, err_msg=path)
