"""Stochastic gradients of a small loss: the cases recorded from Pax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_CLIPPED = {'l2_norm_clip': 0.6}
_NOISY = {'l2_norm_clip': 0.6, 'noise_multiplier': 0.5}
# Name of the case -> (class, fields).
CASES: dict[str, tuple[str, dict[str, Any]]] = {
  'standard': ('StandardGradient', {}),
  'clipped': ('DpSgdStochasticGradient', _CLIPPED),
  'noisy': ('DpSgdStochasticGradient', _NOISY),
  'normalized': (
    'DpSgdStochasticGradient',
    {**_NOISY, 'normalize_gradients': True},
  ),
  'by_weight': (
    'DpSgdStochasticGradient',
    {**_CLIPPED, 'use_loss_weight_scaling': True},
  ),
  'inner_batches': (
    'DpSgdStochasticGradient',
    {**_NOISY, 'inner_batch_size': 4},
  ),
  'microbatches': (
    'MicrobatchDpSgdStochasticGradient',
    {**_NOISY, 'microbatch_size': 3},
  ),
  'inner_microbatches': (
    'MicrobatchDpSgdStochasticGradient',
    {**_NOISY, 'microbatch_size': 2, 'inner_batch_size': 4},
  ),
  'augmented': (
    'AugMulDpSgdStochasticGradient',
    {**_NOISY, 'microbatch_size': 2},
  ),
  'per_weight': ('PerLayerDpSgdStochasticGradient', _NOISY),
  'per_weight_by_size': (
    'PerLayerDpSgdStochasticGradient',
    {**_NOISY, 'use_uniform': False},
  ),
}


# Cases of ghost clipping, whose loss is of layers with ghost norms.
GHOST_CASES: dict[str, dict[str, Any]] = {
  'ghost': _CLIPPED,
  'ghost_noisy': _NOISY,
  'ghost_normalized': {**_NOISY, 'normalize_gradients': True},
}


def ghost_results(
  sgf, base_layer, pax_fiddle, ghostnorm, config, name: str
) -> dict[str, np.ndarray]:
  """Returns `results` of a case of ghost clipping.

  Args:
    sgf: as in `results`.
    base_layer: Pax's module or ours.
    pax_fiddle: likewise.
    ghostnorm: the modules `embedding` and `linears` of `ghostnorm`, likewise.
    config: as in `results`.
    name: of the case.
  """
  embedding, linears = ghostnorm
  tpls = {
    'table': pax_fiddle.Config(
      embedding.EmbeddingGhostNorm, input_dims=4, num_classes=7
    ),
    'linear': pax_fiddle.Config(
      linears.LinearGhostNorm, input_dims=4, output_dims=3
    ),
    'bias': pax_fiddle.Config(linears.BiasGhostNorm, dims=3),
  }

  class Model(base_layer.BaseLayer):
    """An embedding, a product and a bias."""

    def setup(self):
      for child, tpl in tpls.items():
        self.create_child(child, tpl)

    def __call__(self, ids):
      x = jnp.tanh(self.linear(self.table(ids)))
      return jnp.tanh(self.bias(x))

  model = base_layer.instantiate(pax_fiddle.Config(Model, name='model'))
  random = np.random.default_rng(6)
  shapes = {'table': ('emb_var', 7, 4), 'linear': ('w', 4, 3), 'bias': ('b', 3)}
  weights = {
    'params': {
      layer: {own: jnp.asarray(random.normal(size=shape), jnp.float32)}
      for layer, (own, *shape) in shapes.items()
    }
  }
  batch = {
    'ids': jnp.asarray(random.integers(0, 7, (12, 5))),
    'y': jnp.asarray(random.normal(size=(12, 5, 3)), jnp.float32),
  }

  def loss_fn(weights, others_and_batch, key):
    del key
    batch = others_and_batch[1]
    out = model.apply(weights, batch['ids'])
    loss = jnp.mean(jnp.square(out - batch['y']))
    return loss, sgf.GradAuxInfo({'mean': jnp.mean(out)}, jnp.ones([]))

  cls = sgf.GhostClippingDpSgdStochasticGradient
  (loss, aux), gradients = config(cls, GHOST_CASES[name]).grad_fn(
    loss_fn, weights, ({'params': {}}, batch), jax.random.PRNGKey(11)
  )
  return _by_path(loss, aux, gradients)


def results(sgf, config, name: str) -> dict[str, np.ndarray]:
  """Returns loss, aux info and gradients of a case, by path.

  Args:
    sgf: Pax's module or ours.
    config: makes a config of a class and its fields.
    name: of the case.
  """
  random = np.random.default_rng(5)

  def array(*shape):
    return jnp.asarray(random.normal(size=shape), jnp.float32)

  weights = {'params': {'b': array(3), 'w': array(4, 3)}}
  others = {'params': {'scale': array(3)}}
  batch = {'x': array(12, 4), 'y': array(12, 3)}
  cls, fields = CASES[name]

  def loss_fn(weights, others_and_batch, key):
    others, batch = others_and_batch
    params = weights['params']
    x = batch['x'] + 0.1 * jax.random.normal(key, batch['x'].shape)
    out = jnp.tanh(x @ params['w'] + params['b']) * others['params']['scale']
    loss = jnp.mean(jnp.square(out - batch['y']))
    weight = jnp.mean(jnp.abs(batch['y']))
    return loss, sgf.GradAuxInfo({'mean': jnp.mean(out)}, weight)

  (loss, aux), gradients = config(getattr(sgf, cls), fields).grad_fn(
    loss_fn, weights, (others, batch), jax.random.PRNGKey(11)
  )
  return _by_path(loss, aux, gradients)


def _by_path(loss, aux, gradients) -> dict[str, np.ndarray]:
  found = {
    'loss': loss,
    'aux': aux.aux_info,
    'weight': aux.loss_weight,
    'reported': getattr(aux, 'dp_aux_info', None) or {},
    'gradients': gradients,
  }
  paths, _ = jax.tree_util.tree_flatten_with_path(found)
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): np.asarray(x)
    for path, x in paths
  }
