"""Tests of bridged translation tasks and text towers against Lingvo."""

import contextlib

import pytest

from adaptors import lingvo_runtime
from adaptors.bridge.functional import fed_task
from adaptors.bridge.functional.functional_task import FunctionalTask
from adaptors.bridge.ops import xla_ops
from adaptors.lingvo_parity.batches import nested
from tests.adaptors.bridge import family_parity
from tests.adaptors.bridge.families import mt_xendec
from tests.adaptors.translate import lingvo_training, parity

_FAMILIES = (
  'mt_transformer',
  # The same layers, with other sizes and unsharded embeddings, as mt_xendec's.
  pytest.param('wmtm16', marks=pytest.mark.exhaustive),
  # The test of its dropout runs the same layers.
  pytest.param('mt_xendec', marks=pytest.mark.exhaustive),
  pytest.param('milan', marks=pytest.mark.slow),
)


@pytest.mark.parametrize('family', _FAMILIES)
def test_trains_as_in_lingvo(family):
  family_parity.check(family_parity.reported(family))


@pytest.mark.slow
def test_attention_dropout_is_as_in_lingvo():
  """Lingvo uses unseeded numbers there; here it gets the bridge's."""
  tf = lingvo_runtime.module('tensorflow')
  params = mt_xendec.task_params(atten_drop=0.5)
  batch = mt_xendec.batch(0)
  weights, loss, gradients = _in_lingvo(params, batch, [3, 5])
  task = FunctionalTask(params, do_eval=False, xla_device='cpu')

  def bridged(seed):
    (metrics, *_), gradients, _ = task.with_gradients(
      ('loss',),
      {path: tf.constant(w) for path, w in weights.items()},
      tf.nest.map_structure(tf.constant, dict(nested(batch))),
      tf.constant(0),
      tf.constant(seed),
    )
    return metrics['loss'][0].numpy(), gradients['loss']

  found, found_gradients = bridged([3, 5])
  parity.assert_close(found, loss, family_parity.LOSS_TOLERANCE, 'loss')
  parity.assert_gradients_close(
    {path: g.numpy() for path, g in found_gradients.items()}, gradients
  )
  assert abs(bridged([4, 5])[0] - loss) > 1e-4


def _in_lingvo(params, batch, seed):
  """Returns weights, loss and gradients, with the bridge's random numbers."""
  tf = lingvo_runtime.module('lingvo.compat')
  gradients = {}
  with contextlib.ExitStack() as stack:

    def prepare(task):
      lingvo_training.keep_gradients(gradients, task)
      stack.enter_context(xla_ops.replaced(tf.constant(seed)))

    made = stack.enter_context(
      fed_task.build(params, batch, optimized=False, prepare=prepare)
    )
    variables = dict(made.task.vars.FlattenItems())
    made.start()
    return made.session.run(
      (variables, made.task.loss, gradients), made.feed_dict(batch)
    )
