"""XEnDec, translated, against Lingvo's, run for real."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.bridge.functional import fed_task
from pax_compat import base_layer, errors
from tests.adaptors.bridge.families import mt_xendec
from tests.adaptors.translate import (
  lingvo_training,
  parity,
  task_parity,
  tiny_task,
)

# Of keys: they add the same to all logits.
_WITHOUT = 'source_proj_b'


@pytest.mark.exhaustive
def test_twenty_steps():
  batches = [mt_xendec.batch(seed) for seed in range(20)]
  task_parity.check(mt_xendec.task_params(), batches, without_gradient=_WITHOUT)


@pytest.mark.slow
def test_other_settings():
  """Pairs of the row before, no annealing, means over sequences, weights."""
  params = mt_xendec.task_params().Set(
    use_prob_cl=False,
    loss_clean_weight=0.5,
    loss_mono_weight=2.0,
    loss_mix_weight=0.75,
  )
  params.decoder.Set(use_atten_cl=False, per_word_avg_loss=False)
  batch = {k: v for k, v in mt_xendec.batch(0).items() if 'other_' not in k}
  task_parity.check_first(params, [batch])


def _in_lingvo(params, batch, step):
  """Returns weights, and the gradients and losses at a step."""
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  gradients = {}
  prepare = functools.partial(lingvo_training.keep_gradients, gradients)
  with fed_task.build(params, batch, optimized=False, prepare=prepare) as made:
    variables = dict(made.task.vars.FlattenItems())
    losses = {
      name: made.task.eval_metrics[name][0]
      for name in ('loss', 'clean_loss', 'other_loss', 'mix_loss')
    }
    made.start()
    py_utils.GetOrCreateGlobalStepVar().load(step, made.session)
    return made.session.run(
      [variables, gradients, losses], made.feed_dict(batch)
    )


@pytest.mark.slow
def test_half_way_through_the_annealing():
  params, batch, step = mt_xendec.task_params(), mt_xendec.batch(3), 12_000
  weights, gradients, losses = _in_lingvo(params, batch, step)
  ours = task_parity.Ours.create(params, batch, weights)
  counted = {'global_step': jnp.int32(step)}
  variables = {**ours.state.mdl_vars, base_layer.NON_TRAINABLE: counted}
  ours.state = ours.state.replace(mdl_vars=variables)
  found, outputs = ours.gradients_and_outputs(batch)
  parity.assert_gradients_close(found, gradients)
  for name, wanted in losses.items():
    parity.assert_close(outputs[name], np.float32(wanted), 1e-5, name)


@pytest.mark.parametrize(
  ('field', 'value'),
  [
    ('loss_mono_weight', 0.0),
    ('encoder.packed_input', True),
    ('encoder.shared_emb', 1),
    ('decoder.label_smoothing', None),
    ('decoder.use_normalized_atten', True),
  ],
)
def test_what_is_refused(field, value):
  params = mt_xendec.task_params()
  params.Set(**{field: value})
  with pytest.raises(errors.UserError) as error:
    tiny_task.translate(params)
  assert field in str(error.value)


def test_accumulated_gradients_are_refused():
  """They change what Lingvo's global step counts, by which it anneals."""
  optimizers = lingvo_runtime.module('lingvo.core.optimizer')
  params = mt_xendec.task_params()
  params.train.optimizer = optimizers.XLAShardingAdafactorAccuGrad.Params().Set(
    num_micro_batches=4
  )
  with pytest.raises(errors.UserError, match='accumulated gradients'):
    tiny_task.translate(params)
