"""Ghost clipping has the numbers of clipping the gradient of each example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS, WeightHParams
from pax_compat.config import Config
from pax_compat.ghostnorm import generic_wrapper
from pax_compat.layers import linears, normalizations
from pax_compat.layers.embeddings import embedding_tables, positional_embeddings
from pax_compat.learners import sgf

_ROWS, _LENGTH, _VOCAB = 6, 5, 9


class _Scaled(base_layer.BaseLayer):
  """A layer with a matrix and no ghost norms."""

  def setup(self):
    self.create_variable('w', WeightHParams([_LENGTH, 4]))

  def __call__(self, x):
    return x * self.theta.w


class _Model(base_layer.BaseLayer):
  """Embedding, positions, feed-forward layers, normalization, classes."""

  calls: int = 1
  lookup_style: str = 'index'
  hidden: int = 7
  other_tpl: Config = None

  def setup(self):
    width = {'input_dims': 4}
    self.create_child(
      'emb',
      embedding_tables.Embedding.config(
        num_classes=_VOCAB, lookup_style=self.lookup_style, **width
      ).set(scale_sqrt_depth=True),
    )
    self.create_child(
      'positions',
      positional_embeddings.TrainablePositionalEmbedding.config(
        max_seq_length=_LENGTH + 1, embedding_dims=4
      ),
    )
    feed_forward = linears.FeedForward.config(**width)
    self.create_child('up', feed_forward.clone(), output_dims=self.hidden)
    self.create_child(
      'down', feed_forward.clone(), input_dims=self.hidden, output_dims=4
    )
    self.create_child('norm', normalizations.LayerNorm.config(dim=4))
    self.create_child('out', feed_forward.clone(), output_dims=_VOCAB)
    if self.other_tpl is not None:
      self.create_child('other', self.other_tpl)

  def __call__(self, ids):
    x = self.emb(ids) + self.positions(ids.shape[1])
    for _ in range(self.calls):
      x = x + self.down(self.up(x))
    x = self.norm(x)
    if self.other_tpl is not None:
      x = self.other(x)
    return self.out(x)


def _loss_fn(model):
  def loss_fn(weights, others_and_batch, key):
    batch = others_and_batch[1]
    logits = model.apply(weights, batch['ids'])
    logits += 0.1 * jax.random.normal(key, logits.shape)
    each = -jnp.take_along_axis(
      jax.nn.log_softmax(logits), batch['labels'][..., None], -1
    )[..., 0]
    total = jnp.sum(batch['weights'])
    loss = jnp.sum(each * batch['weights']) / jnp.maximum(total, 1e-6)
    return loss, sgf.GradAuxInfo({'mean': jnp.mean(logits)}, total / _LENGTH)

  return loss_fn


def _batch():
  random = np.random.default_rng(3)
  ids, labels = random.integers(0, _VOCAB, (2, _ROWS, _LENGTH))
  weights = (random.uniform(size=ids.shape) < 0.8).astype(np.float32)
  weights[2] = 0  # A row of padding.
  ids[0] = ids[0, 0]
  return {'ids': ids, 'labels': labels, 'weights': weights}


def _results(cls, model, **fields):
  batch = _batch()
  weights = model.init(jax.random.key(1), batch['ids'])
  stochastic = cls.config(**{'l2_norm_clip': 0.9, **fields}).Instantiate()
  compute = jax.jit(
    lambda weights, batch: stochastic.grad_fn(
      _loss_fn(model), weights, ({}, batch), jax.random.key(7)
    )
  )
  return compute(weights, batch)


def _assert_same(model, **fields):
  plain = _results(sgf.DpSgdStochasticGradient, model, **fields)
  ghost = _results(sgf.GhostClippingDpSgdStochasticGradient, model, **fields)
  assert jax.tree.structure(plain) == jax.tree.structure(ghost)
  for path, found in jax.tree.leaves_with_path(ghost):
    expected = dict(jax.tree.leaves_with_path(plain))[path]
    np.testing.assert_allclose(
      found, expected, rtol=1e-5, atol=1e-6, err_msg=str(path)
    )
  return ghost


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'noise_multiplier': 0.4, 'normalize_gradients': True},
    {'use_loss_weight_scaling': True},
    {'noise_multiplier': 0.4, 'inner_batch_size': 2},
  ],
)
def test_numbers_are_those_of_gradients_of_examples(fields):
  (_, aux), _ = _assert_same(_Model.config().Instantiate(), **fields)
  assert 0 < aux.dp_aux_info['frac_clipped'] < 1


class _Microbatches(
  sgf.GhostClippingDpSgdStochasticGradient,
  sgf.MicrobatchDpSgdStochasticGradient,
):
  """Clips the gradients of microbatches."""


def test_microbatches_of_a_subclass():
  model, size = _Model.config().Instantiate(), {'microbatch_size': 2}
  with pytest.raises(errors.UserError, match='None, which splits microbatches'):
    _results(_Microbatches, model, **size)
  ghost = _results(_Microbatches, model, inner_batch_size=3, **size)
  whole = _results(
    sgf.MicrobatchDpSgdStochasticGradient, model, inner_batch_size=3, **size
  )
  for found, expected in zip(
    *map(jax.tree.leaves, (ghost, whole)), strict=True
  ):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_products_of_either_size_and_lookups_of_both_styles():
  """A wide layer's norm is from products of positions, not of dims."""
  model = _Model.config(hidden=40, lookup_style='matmul').Instantiate()
  _assert_same(model)


def test_a_matrix_without_ghost_norms_is_refused():
  model = _Model.config(other_tpl=_Scaled.config()).Instantiate()
  with pytest.raises(
    errors.UserError,
    match="the weight 'other/w' is of the layer _Scaled 'other', which has no"
    ' ghost norms; .*force_wrap=True',
  ):
    _results(sgf.GhostClippingDpSgdStochasticGradient, model)


def test_a_wrapped_layer_may_have_gradients_of_examples():
  wrapped = generic_wrapper.generate_wrapped_template(
    _Scaled.config(), force_wrap=True
  )
  _assert_same(_Model.config(other_tpl=wrapped).Instantiate())


def test_a_layer_that_is_called_twice_is_refused():
  model = _Model.config(calls=2).Instantiate()
  with pytest.raises(
    errors.UserError,
    match="'(down|up)/linear/w' of the layer Linear '(down|up)/linear' is used"
    ' several times'
    r'.*\(and 1 more like it\)',
  ):
    _results(sgf.GhostClippingDpSgdStochasticGradient, model)


def test_a_kept_trace_is_an_error():
  """Taps within a function of `jax.jit` that was traced before are lost."""
  model = linears.Linear.config(input_dims=4, output_dims=3).Instantiate()
  apply = jax.jit(model.apply)

  def loss_fn(weights, others_and_batch, key):
    del key
    out = apply(weights, others_and_batch[1])
    return jnp.sum(out), sgf.GradAuxInfo({})

  x = jnp.ones([2, 4])
  ghost = sgf.GhostClippingDpSgdStochasticGradient.config(l2_norm_clip=1.0)
  with pytest.raises(errors.UserError, match="'w' is within a function of jax"):
    ghost.Instantiate().grad_fn(
      loss_fn, model.init(jax.random.key(0), x), ({}, x), jax.random.key(0)
    )


def test_memory_has_no_gradients_of_examples():
  """32 rows, and a matrix of 256 x 512: 16 MiB of gradients, or 0.5 MiB."""
  rows, inputs, outputs = 32, 256, 512
  model = linears.FeedForward.config(input_dims=inputs, output_dims=outputs)
  model = model.Instantiate()

  def loss_fn(weights, others_and_batch, key):
    del key
    out = model.apply(weights, others_and_batch[1])
    return jnp.mean(jnp.square(out)), sgf.GradAuxInfo({})

  x = jnp.ones([rows, 4, inputs])
  weights = model.init(jax.random.key(0), x)

  def temporary(cls):
    stochastic = cls.config(l2_norm_clip=1.0).Instantiate()
    compiled = (
      jax.jit(
        lambda weights, x: stochastic.grad_fn(
          loss_fn, weights, ({}, x), jax.random.key(0)
        )
      )
      .lower(weights, x)
      .compile()
    )
    return compiled.memory_analysis().temp_size_in_bytes

  gradients = 4 * rows * weights[PARAMS]['linear']['w'].size
  assert temporary(sgf.DpSgdStochasticGradient) > gradients
  assert temporary(sgf.GhostClippingDpSgdStochasticGradient) < gradients / 8
