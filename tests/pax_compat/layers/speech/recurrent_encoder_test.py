"""Tests of the recurrent speech encoder, without Lingvo."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.layers.convolutions.conv import ConvBNActWithPadding
from pax_compat.layers.normalizations.norm_layers import BatchNorm
from pax_compat.layers.rnn.recurrent import BidirectionalFrnn, LstmFrnn
from pax_compat.layers.rnn.rnn_cells import LstmCellSimple
from pax_compat.layers.speech.projections import PaddedProjection
from pax_compat.layers.speech.recurrent_encoder import RecurrentSpeechEncoder

_BINS, _CHANNELS, _NODES = 6, 2, 3


def _rnn(inputs):
  cell = LstmCellSimple.config(num_input_nodes=inputs, num_output_nodes=_NODES)
  return BidirectionalFrnn.config(
    fwd_frnn_tpl=LstmFrnn.config(cell_tpl=cell),
    bwd_frnn_tpl=LstmFrnn.config(cell_tpl=cell.clone()),
  )


def _encoder(**changes):
  dims = 2 * _NODES
  fields = dict(
    pad_steps=2,
    conv_tpls=[
      ConvBNActWithPadding.config(
        filter_shape=(3, 3, 1, _CHANNELS),
        filter_stride=(2, 2),
        compat_with_lingvo=True,
        tf_equivalent_padding=True,
        batch_norm_tpl=BatchNorm.config(),
      )
    ],
    rnn_input_dims=8,
    rnn_tpls=[_rnn(8), _rnn(dims)],
    proj_tpls=[PaddedProjection.config(input_dims=dims, output_dims=dims)],
  )
  return RecurrentSpeechEncoder.config(**{**fields, **changes}).Instantiate()


def _batch(frames):
  rng = np.random.default_rng(0)
  inputs = rng.normal(size=(2, frames, _BINS, 1)).astype(np.float32)
  paddings = np.zeros([2, frames], np.float32)
  paddings[1, 5:] = 1
  return inputs, paddings


def test_padding_has_no_influence():
  """Neither its values nor, in training, the statistics that it would have."""
  inputs, paddings = _batch(8)
  encoder = _encoder()
  variables = encoder.init(jax.random.key(0), inputs, paddings)
  outputs = []
  for value in (0.0, 7.0):
    changed = np.where(paddings[..., None, None] > 0, value, inputs)
    (encoded, ends), updates = encoder.apply(
      variables, changed, paddings, mutable=[base_layer.NON_TRAINABLE]
    )
    assert encoded.shape == (2, 5, 2 * _NODES)
    np.testing.assert_array_equal(ends, [[0] * 4 + [1], [0] * 2 + [1] * 3])
    assert np.all(encoded[ends > 0] == 0) and np.all(encoded[0, :4] != 0)
    outputs.append((encoded, updates))
  jax.tree.map(np.testing.assert_array_equal, *outputs)


def test_residual_of_every_other_layer():
  """It adds what the first of two layers got to what the second returns."""
  inputs, paddings = _batch(8)
  dims = 2 * _NODES
  layers = dict(rnn_tpls=[_rnn(8), _rnn(dims), _rnn(dims)], proj_tpls=())
  plain = _encoder(**layers)
  variables = plain.init(jax.random.key(0), inputs, paddings)
  shorter = _encoder(**{**layers, 'rnn_tpls': layers['rnn_tpls'][:1]})
  residual = _encoder(**layers, residual_start=2, residual_stride=2)
  with base_layer.eval_mode(True):
    first, last, found = (
      one.apply(variables, inputs, paddings)[0]
      for one in (shorter, plain, residual)
    )
  np.testing.assert_allclose(found, first + last, rtol=1e-5, atol=1e-6)


def test_fields_that_do_not_fit():
  inputs, paddings = map(jnp.asarray, _batch(8))
  for changes, message in (
    ({'rnn_input_dims': 4}, 'rnn_input_dims is 4; .* has 6 dims'),
    ({'rnn_tpls': []}, '1 proj_tpls and 0 rnn_tpls'),
  ):
    with pytest.raises(errors.UserError, match=message):
      _encoder(**changes).init(jax.random.key(0), inputs, paddings)
