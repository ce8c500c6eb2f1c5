"""XEnDec, translated, against Lingvo's, run for real."""

import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.bridge.functional import fed_task
from pax_compat import base_layer, errors
from tests.adaptors.bridge.families import mt_xendec
from tests.adaptors.translate import parity, task_parity, tiny_task

# Of keys: they add the same to all logits.
_WITHOUT = 'source_proj_b'


def _params(layers=1):
  params = mt_xendec.task_params()
  params.encoder.transformer_stack.num_transformer_layers = layers
  params.decoder.num_trans_layers = layers
  return params


@pytest.mark.slow
def test_twenty_steps():
  batches = [mt_xendec.batch(seed) for seed in range(20)]
  task_parity.check(_params(layers=2), batches, without_gradient=_WITHOUT)


@pytest.mark.slow
def test_other_settings():
  """Pairs of the row before, no annealing, means over sequences, weights."""
  params = _params().Set(
    use_prob_cl=False,
    loss_clean_weight=0.5,
    loss_mono_weight=2.0,
    loss_mix_weight=0.75,
  )
  params.decoder.Set(use_atten_cl=False, per_word_avg_loss=False)
  batches = [
    {k: v for k, v in mt_xendec.batch(seed).items() if 'other_' not in k}
    for seed in range(2)
  ]
  task_parity.check(params, batches, without_gradient=_WITHOUT)


def _in_lingvo(params, batch, step):
  """Returns weights, and the gradients and losses at a step."""
  tf = lingvo_runtime.module('lingvo.compat')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  with fed_task.build(params, batch, optimized=False) as made:
    variables = dict(made.task.vars.FlattenItems())
    found = tf.gradients(made.task.loss, list(variables.values()))
    gradients = {
      path: tf.convert_to_tensor(g)
      for path, g in zip(variables, found, strict=True)
    }
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
  params, batch, step = _params(), mt_xendec.batch(3), 12_000
  weights, gradients, losses = _in_lingvo(params, batch, step)
  ours = task_parity.Ours.create(params, batch, weights)
  counted = {'global_step': jnp.int32(step)}
  variables = {**ours.state.mdl_vars, base_layer.NON_TRAINABLE: counted}
  ours.state = ours.state.replace(mdl_vars=variables)
  parity.assert_gradients_close(ours.gradients(batch), gradients)
  _, outputs = ours.program.train_step(ours.state, task_parity.nested(batch))
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
  params = _params()
  params.Set(**{field: value})
  with pytest.raises(errors.UserError) as error:
    tiny_task.translate(params)
  assert field in str(error.value)


def test_accumulated_gradients_are_refused():
  """They change what Lingvo's global step counts, by which it anneals."""
  optimizers = lingvo_runtime.module('lingvo.core.optimizer')
  params = _params()
  params.train.optimizer = optimizers.XLAShardingAdafactorAccuGrad.Params().Set(
    num_micro_batches=4
  )
  with pytest.raises(errors.UserError, match='accumulated gradients'):
    tiny_task.translate(params)
