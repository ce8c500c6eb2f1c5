"""Metrics of `CustomMetricsLM`. The numbers are those of praxis."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import pax_names
from pax_compat import base_layer, errors
from pax_compat.nested_map import NestedMap

pax_names.install()

_V, _T = 8, 4


def _model(**fields):
  from praxis import pax_fiddle
  from praxis.contrib.gpu.scripts_gpu import models

  p = pax_fiddle.Config(models.CustomMetricsLM, name='lm', **fields)
  p.lm_tpl.set(vocab_size=_V, model_dims=8)
  p.lm_tpl.softmax_tpl.scale_sqrt_depth = True
  p.lm_tpl.stacked_transformer_tpl.set(
    num_layers=1, model_dims=8, hidden_dims=8, num_heads=1
  )
  return p


def _metrics(model, batch, predictions):
  layer = model.Instantiate()
  with base_layer.JaxContext.new_context(
    hparams=base_layer.JaxContext.HParams(do_eval=True)
  ):
    metrics, _ = layer.apply({}, predictions, batch, method=layer.compute_loss)
  return metrics


def _case(labels, rows):
  """Returns a batch whose last tokens count, and no predictions yet."""
  shape = labels.shape
  weights = np.zeros(shape, np.float32)
  weights[:, -1] = 1
  batch = NestedMap(
    ids=labels,
    labels=labels,
    weights=weights,
    paddings=np.zeros(shape, np.float32),
    segment_ids=np.ones(shape, np.int32),
    segment_pos=np.tile(np.arange(_T), (len(labels), 1)),
    eval_sample_weights=np.asarray(rows, np.float32),
  )
  one, each = jnp.ones(()), jnp.ones(len(labels))
  predictions = NestedMap(
    per_example_argmax=jnp.zeros(shape, jnp.int32),
    logits=jnp.zeros([*shape, _V]),
    total_loss=one,
    avg_xent=one,
    total_xent=one,
    aux_loss=0 * one,
    aux_weight=0 * one,
    total_weight=jnp.sum(weights),
    per_sequence_xent=each,
    per_example_xent=jnp.ones(shape),
  )
  return jax.tree.map(jnp.asarray, batch), predictions


@pytest.mark.parametrize('field', ['eval_task', 'report_strict_acc'])
def test_strict_accuracy_of_the_weighted_tokens(field):
  labels = np.full([4, _T], 3, np.int32)
  batch, predictions = _case(labels, rows=[1, 1, 1, 0])
  argmax = np.zeros_like(labels)
  argmax[[0, 3], -1] = 3  # Row 3 is padding.
  predictions.per_example_argmax = jnp.asarray(argmax)
  fields = {field: 'lambada' if field == 'eval_task' else True}
  metrics = _metrics(_model(**fields), batch, predictions)
  value, weight = metrics.acc_strict
  np.testing.assert_allclose((value, weight), (1 / 3, 3))


def test_answers_with_the_larger_logit():
  labels = np.full([3, _T], 3, np.int32)
  labels[1] = 5
  batch, predictions = _case(labels, rows=[1, 1, 1])
  logits = np.zeros([3, _T, _V], np.float32)
  logits[:, :, 5] = 1.0  # "No" everywhere: right in row 1 only.
  predictions.logits = jnp.asarray(logits)
  model = _model(eval_task='boolq', boolq_yn_tokens=[3, 5])
  value, weight = _metrics(model, batch, predictions).boolq_acc
  np.testing.assert_allclose((value, weight), (1 / 3, 3))


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    (dict(eval_task='squad'), "eval_task is 'squad'; expected one of"),
    (dict(eval_task='boolq'), 'expected the ids of yes and no'),
  ],
)
def test_mistakes(fields, message):
  batch, predictions = _case(np.ones([1, _T], np.int32), [1])
  with pytest.raises(errors.UserError, match=message):
    _metrics(_model(**fields), batch, predictions)
