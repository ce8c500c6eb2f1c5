"""DPO against its formula, with the log-probabilities of the networks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS, RANDOM
from pax_compat.layers import models
from pax_compat.layers.transformer_models.transformer_encoder_decoder import (
  TransformerEncoderDecoder,
)
from pax_compat.layers.transformer_models.transformer_lm import TransformerLm
from pax_compat.layers.transformers import stacked_transformers
from pax_compat.nested_map import NestedMap

B, T, V, BETA = 3, 6, 9, 0.3


def _stack(tpl):
  tpl.set(num_layers=1, num_heads=2, hidden_dims=8, model_dims=4)
  return tpl


def _lm():
  config = TransformerLm.config(vocab_size=V, model_dims=4)
  _stack(config.stacked_transformer_tpl)
  return config


def _lm_batch():
  rng = np.random.default_rng(0)
  paddings = (np.arange(T) >= np.array([6, 4, 5])[:, None]).astype(np.float32)
  batch = NestedMap()
  for half in ('y_w', 'y_l'):
    batch[f'{half}/inputs'] = rng.integers(0, V, (B, T)).astype(np.int32)
    batch[f'{half}/labels/ids'] = rng.integers(0, V, (B, T)).astype(np.int32)
    batch[f'{half}/labels/weights'] = (1 - paddings) * (np.arange(T) > 1)
    batch[f'{half}/paddings'] = paddings
  return batch


@functools.cache
def _lm_model():
  model = models.LanguageModelDPO.config(
    ref_mdl=_lm(), mdl=_lm(), beta=BETA
  ).Instantiate()
  params = model.init(
    {PARAMS: jax.random.key(0), RANDOM: jax.random.key(1)},
    _lm_batch(),
    method='compute_predictions',
  )
  return model, base_layer.unbox(params)


def _loss(model, variables, batch):
  def run(module, batch):
    predictions = module.compute_predictions(batch)
    return module.compute_loss(predictions, batch)

  with base_layer.eval_mode():
    return model.apply(variables, batch, method=run)


def _log_p(variables, name, batch, half):
  layer = _lm().Instantiate()
  ids = batch[f'{half}/labels/ids']
  out = layer.apply(
    {PARAMS: variables[PARAMS][name]},
    batch[f'{half}/inputs'],
    batch[f'{half}/paddings'],
  )
  found = np.take_along_axis(np.asarray(out.log_probs), ids[..., None], -1)
  return (found[..., 0] * batch[f'{half}/labels/weights']).sum(1)


def test_the_loss_of_language_models():
  model, variables = _lm_model()
  assert {'ref_mdl', 'mdl'} <= set(variables[PARAMS])
  batch = _lm_batch()
  with base_layer.eval_mode():
    rewards = [
      BETA
      * (
        _log_p(variables, 'mdl', batch, h)
        - _log_p(variables, 'ref_mdl', batch, h)
      )
      for h in ('y_w', 'y_l')
    ]
  margins = rewards[0] - rewards[1]
  losses = np.log1p(np.exp(-margins))
  metrics, outputs = _loss(model, variables, batch)
  np.testing.assert_allclose(metrics.total_loss[0], losses.mean(), rtol=1e-5)
  assert metrics.total_loss[1] == B
  np.testing.assert_allclose(outputs.scores, margins, rtol=1e-4, atol=1e-6)
  batch.eval_sample_weights = np.array([1, 0, 1], np.float32)
  metrics, _ = _loss(model, variables, batch)
  np.testing.assert_allclose(metrics.loss[0], losses[[0, 2]].mean(), rtol=1e-5)
  # A nested batch is the same.
  nested = NestedMap(
    {
      half: {
        'inputs': batch[f'{half}/inputs'],
        'paddings': batch[f'{half}/paddings'],
        'labels': {
          'ids': batch[f'{half}/labels/ids'],
          'weights': batch[f'{half}/labels/weights'],
        },
      }
      for half in ('y_w', 'y_l')
    },
    eval_sample_weights=batch.eval_sample_weights,
  )
  again, _ = _loss(model, variables, nested)
  assert again.loss[0] == metrics.loss[0]
  del batch['y_l/labels/ids']
  with pytest.raises(errors.UserError, match='has no y_l/labels/ids'):
    _loss(model, variables, batch)


def test_the_reference_gets_no_gradient():
  model, variables = _lm_model()
  others = {k: v for k, v in variables.items() if k != PARAMS}

  def loss(params):
    metrics, _ = _loss(model, {PARAMS: params, **others}, _lm_batch())
    return metrics.total_loss[0]

  grads = jax.grad(loss)(variables[PARAMS])
  sums = {
    name: sum(float(jnp.abs(x).sum()) for x in jax.tree.leaves(grads[name]))
    for name in ('mdl', 'ref_mdl')
  }
  assert sums['mdl'] > 0 and sums['ref_mdl'] == 0


def test_the_loss_of_sequence_models():
  config = TransformerEncoderDecoder.config(model_dims=4)
  for side in ('encoder', 'decoder'):
    stack = _stack(stacked_transformers.StackedTransformer.config())
    config.set(**{f'{side}_stacked_transformer_tpl': stack})
  config.softmax_tpl.num_classes = V
  model = models.SequenceModelDPO.config(
    model_tpl=config, beta=BETA
  ).Instantiate()
  lm = _lm_batch()
  batch = NestedMap(inputs=lm['y_w/inputs'], input_paddings=lm['y_w/paddings'])
  for half in 'wl':
    batch[f'targets_{half}'] = lm[f'y_{half}/inputs']
    for name in ('paddings', 'labels/ids', 'labels/weights'):
      batch[f'targets_{half}/{name}'] = lm[f'y_{half}/{name}']
  variables = base_layer.unbox(
    model.init(
      {PARAMS: jax.random.key(0), RANDOM: jax.random.key(1)},
      batch,
      method='compute_predictions',
    )
  )
  metrics, _ = _loss(model, variables, batch)
  assert metrics.total_loss[0] != pytest.approx(np.log(2))
  # A model that is its own reference prefers nothing.
  params = variables[PARAMS]
  variables = {**variables, PARAMS: {**params, 'ref_model': params['model']}}
  metrics, _ = _loss(model, variables, batch)
  np.testing.assert_allclose(metrics.total_loss[0], np.log(2), rtol=1e-6)
  src = NestedMap(ids=batch.inputs, paddings=batch.input_paddings)
  tgt = NestedMap(
    ids=batch.targets_w,
    paddings=batch['targets_w/paddings'],
    labels=batch['targets_w/labels/ids'],
    weights=batch['targets_w/labels/weights'],
  )
  metrics, _ = _loss(model, variables, NestedMap(src=src, tgt=tgt))
  assert metrics.log_pplx[0] > 0
