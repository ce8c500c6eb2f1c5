"""Tests of dual encoders without Lingvo; those with it are of adaptors.

Shapes: B batch, I items of an example, D dims.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.layers import linears
from pax_compat.layers.models import dual_encoder
from pax_compat.nested_map import NestedMap

_SEARCHES = 'image_to_text', 'text_to_image'


def _model(**fields):
  """Returns a dual encoder of images, one each, and texts, two each."""
  towers = [
    dual_encoder.ModalityEncoder.config(
      modality=name,
      input_fields=[f'{name}/features'],
      id_field=f'{name}/id',
      encoder_tpl=linears.Linear.config(input_dims=3, output_dims=4),
    )
    for name in ('image', 'text')
  ]
  return dual_encoder.DualEncoder.HParams(
    name='dual',
    encoder_tpls=towers,
    loss_weights=[('image', 'text', 0.5), ('text', 'image', 1.0)],
    **fields,
  ).Instantiate()


def _batch(rows):
  rng = np.random.default_rng(0)
  return NestedMap(
    {
      'image/features': jnp.asarray(rng.normal(size=[9, 3])[:rows]),
      'image/id': jnp.arange(rows),
      'text/features': jnp.asarray(rng.normal(size=[9, 2, 3])[:rows]),
      'text/id': jnp.arange(2 * rows).reshape([rows, 2]),
    }
  )


def _metrics(model, variables, batch):
  with base_layer.eval_mode(True):
    return jax.jit(model.apply)(variables, batch)[0]


def test_padding_rows_do_not_count():
  model, batch = _model(), _batch(3)
  variables = model.init(jax.random.key(0), batch)
  wanted = _metrics(model, variables, batch)
  padded = _batch(6)
  padded.eval_sample_weights = jnp.array([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
  found = _metrics(model, variables, padded)
  assert set(found) == {'loss', 'loss_image_to_text', 'loss_text_to_image'}
  for name, (value, weight) in wanted.items():
    assert weight == 1
    np.testing.assert_allclose(found[name][0], value, rtol=1e-6)
    assert found[name][1] == 0.5
  first, second = (wanted[f'loss_{k}'][0] for k in _SEARCHES)
  np.testing.assert_allclose(wanted['loss'][0], 0.5 * first + second, rtol=1e-6)


def test_one_example_has_no_negative_results():
  scores = jnp.array([[2.0, 5.0], [1.0, 3.0]])
  labels = jnp.array([[1, -1], [0, 1]])
  found, gradient = jax.value_and_grad(
    lambda s: dual_encoder.contrastive_losses(labels, s).sum()
  )(scores)
  np.testing.assert_allclose(found, np.log1p(np.exp(-2.0)), rtol=1e-6)
  assert not gradient[0].any() and np.isfinite(gradient).all()


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    ({'text/id': jnp.zeros([4, 2])}, r'shape \[3, 2, 3\]; expected \[4, 2\]'),
    ({'text/id': None}, "'text/id', which is not in the batch"),
  ],
)
def test_batches_that_are_refused(change, words):
  with pytest.raises(errors.UserError, match=words):
    _model().init(jax.random.key(0), NestedMap({**_batch(3), **change}))


def test_a_modality_that_is_unknown():
  model = _model().clone(loss_weights=[('image', 'texts', 1.0)])
  with pytest.raises(errors.UserError, match="'texts' is not a modality"):
    model.init(jax.random.key(0), _batch(3))


def test_predictions():
  model, batch = _model(), _batch(3)
  variables = model.init(jax.random.key(0), batch)
  found = model.apply(variables, batch, method=model.predict)
  assert found.text.encodings.shape == (3, 2, 4)
  np.testing.assert_array_equal(found.image.ids, batch['image/id'])
