"""Convolutions against sums over their windows.

Shapes: B batch, T time, H height, W width, I input channels, O output channels.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.base_layer import PARAMS, WeightInit
from pax_compat.layers.convolutions import conv
from pax_compat.layers.normalizations import norm_layers

RNG = np.random.default_rng(0)


def _convolved(x, w, strides, dilations, pads):
  """Returns the convolution [B, ..., O] of x [B, ..., I] with w [..., I, O].

  Args:
    x: the inputs, whose channels may be those of several groups.
    w: the kernel.
    strides: one for each spatial dimension.
    dilations: likewise.
    pads: likewise, the numbers of zeros before and after.
  """
  x = np.pad(x.astype(np.float64), [(0, 0), *pads, (0, 0)])
  spans = [
    d * (k - 1) + 1 for k, d in zip(w.shape[:-2], dilations, strict=True)
  ]
  sizes = [
    (n - span) // s + 1
    for n, span, s in zip(x.shape[1:-1], spans, strides, strict=True)
  ]
  taken, given = w.shape[-2:]
  groups = x.shape[-1] // taken
  y = np.zeros([x.shape[0], *sizes, given])
  for at in itertools.product(*map(range, sizes)):
    window = x[
      (
        slice(None),
        *(
          slice(i * s, i * s + span, d)
          for i, s, span, d in zip(at, strides, spans, dilations, strict=True)
        ),
      )
    ]
    for g in range(groups):
      own = slice(g * given // groups, (g + 1) * given // groups)
      seen = window[..., g * taken : (g + 1) * taken]
      y[(slice(None), *at, own)] = np.tensordot(
        seen, w[..., own], axes=w.ndim - 1
      )
  return y


def _same(spans):
  return [((span - 1) // 2, span - 1 - (span - 1) // 2) for span in spans]


def _tensorflow_same(sizes, spans, strides):
  """Returns the padding 'SAME' as in TensorFlow's documentation."""
  pads = []
  for n, span, stride in zip(sizes, spans, strides, strict=True):
    rest = n % stride or stride
    total = max(span - rest, 0)
    pads.append((total // 2, total - total // 2))
  return pads


_CLASSES = {
  1: conv.Conv1D,
  2: conv.Conv2D,
  3: conv.Conv3D,
}


def _check(pads, *, sizes, kernel, groups=1, **fields):
  """Holds a layer against the sums over its windows."""
  rank = len(kernel)
  x = RNG.normal(size=(2, *sizes, 2 * groups)).astype(np.float32)
  w = RNG.normal(size=(*kernel, 2, 4)).astype(np.float32)
  config = _CLASSES[rank].config(filter_shape=w.shape, **fields)
  y = config.Instantiate().apply({PARAMS: {'w': w}}, x)
  ones = [1] * rank
  strides = fields.get('filter_stride', ones)
  dilations = fields.get('dilations', ones)
  want = _convolved(x, w, strides, dilations, pads)
  np.testing.assert_allclose(y, want, atol=1e-4)


@pytest.mark.parametrize(
  ('kernel', 'fields'),
  [
    ((3,), {}),
    ((4,), {'filter_stride': [2]}),
    ((2,), {'dilations': [3]}),
    ((3, 2), {}),
    ((3, 2), {'filter_stride': (2, 1)}),
    ((2, 3), {'dilations': (2, 1)}),
    ((2, 2), {'filter_stride': (2, 3), 'dilations': (2, 2)}),
    ((3, 2, 1), {'filter_stride': (2, 1, 2)}),
    ((1, 3, 2), {'dilations': (1, 2, 1)}),
  ],
)
@pytest.mark.parametrize('padding', ['SAME', 'VALID', 'tensorflow', 'causal'])
def test_convolution(kernel, fields, padding):
  rank = len(kernel)
  sizes = (7, 6, 5)[:rank]
  dilations = fields.get('dilations', [1] * rank)
  strides = fields.get('filter_stride', [1] * rank)
  spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
  tensorflow = _tensorflow_same(sizes, spans, strides)
  pads, fields = {
    'SAME': (_same(spans), fields),
    'VALID': ([(0, 0)] * rank, {**fields, 'padding': 'VALID'}),
    'tensorflow': (tensorflow, {**fields, 'tf_equivalent_padding': True}),
    'causal': (
      [(spans[0] - 1, 0), *_same(spans[1:])],
      {**fields, 'tf_equivalent_padding': True, 'is_causal': True},
    ),
  }[padding]
  _check(pads, sizes=sizes, kernel=kernel, **fields)


@pytest.mark.parametrize('kernel', [(3,), (3, 1), (3, 1, 3)])
def test_channels_in_groups(kernel):
  _check(_same(kernel), sizes=(4, 3, 3)[: len(kernel)], kernel=kernel, groups=2)


def test_causal_outputs_do_not_see_what_comes_later():
  config = conv.Conv2D.config(
    filter_shape=(3, 3, 1, 2), tf_equivalent_padding=True, is_causal=True
  )
  x = RNG.normal(size=(1, 6, 4, 1)).astype(np.float32)
  layer = config.Instantiate()
  variables = layer.init_boxed(jax.random.key(0), x)
  later = x.copy()
  later[:, 4:] += 9
  y, z = layer.apply(variables, x), layer.apply(variables, later)
  np.testing.assert_array_equal(y[:, :4], z[:, :4])
  assert (y[:, 4] != z[:, 4]).any()


def test_depthwise():
  config = conv.Conv2D.HParamsDepthwise(
    kernel_shape=(3, 2), in_channels=3, channel_multipliers=2, bias=True
  )
  assert config.filter_shape == (3, 2, 1, 6)
  x = RNG.normal(size=(2, 4, 4, 3)).astype(np.float32)
  w = RNG.normal(size=(3, 2, 1, 6)).astype(np.float32)
  b = np.arange(6, dtype=np.float32)
  y = config.Instantiate().apply({PARAMS: {'w': w, 'b': b}}, x)
  want = _convolved(x, w, (1, 1), (1, 1), _same((3, 2))) + b
  np.testing.assert_allclose(y, want, atol=1e-5)


def test_first_values():
  config = conv.Conv2D.config(
    filter_shape=(1, 1, 2, 3),
    bias=True,
    bias_init=WeightInit.Constant(0.5),
    kernel_init=WeightInit.Constant(2.0),
  )
  y, _ = config.Instantiate().init_with_output(
    jax.random.key(0), jnp.ones([1, 1, 1, 2])
  )
  np.testing.assert_array_equal(np.ravel(y), [4.5] * 3)


def test_the_kernel_is_normalised_if_told_so():
  config = conv.Conv1D.config(
    filter_shape=(3, 2, 4),
    weight_norm_tpl=norm_layers.WeightNormL2.config(),
    padding='VALID',
  )
  x = RNG.normal(size=(1, 3, 2)).astype(np.float32)
  w = RNG.normal(size=(3, 2, 4)).astype(np.float32)
  g = np.arange(4, dtype=np.float32)
  y = config.Instantiate().apply({PARAMS: {'w': w, 'weight_norm': {'g': g}}}, x)
  w = w / np.sqrt((w**2).sum((0, 1))) * (1 + g)
  np.testing.assert_allclose(y[0, 0], np.tensordot(x[0], w), atol=1e-5)


def test_computes_in_the_dtype_of_the_computation():
  config = conv.Conv2D.config(
    filter_shape=(1, 1, 2, 3), fprop_dtype=jnp.bfloat16, bias=True
  )
  x = np.arange(8, dtype=np.uint8).reshape(1, 2, 2, 2)
  y, variables = config.Instantiate().init_with_output(jax.random.key(0), x)
  assert y.dtype == jnp.bfloat16
  for box in variables[PARAMS].values():
    assert box.value.dtype == jnp.float32


def test_gradients():
  x = RNG.normal(size=(1, 3, 1)).astype(np.float32)
  w = RNG.normal(size=(2, 1, 1)).astype(np.float32)
  layer = conv.Conv1D.config(
    filter_shape=w.shape, padding='VALID', bias=True
  ).Instantiate()

  def loss(params, x):
    y = layer.apply({PARAMS: params}, x)
    return jnp.sum(y[0, :, 0] * jnp.array([2.0, 3.0]))

  params = {'w': w, 'b': np.zeros(1, np.float32)}
  by_params, by_x = jax.grad(loss, (0, 1))(params, x)
  a, b, c = x.ravel()
  want = [2 * a + 3 * b, 2 * b + 3 * c]
  np.testing.assert_allclose(by_params['w'].ravel(), want, rtol=1e-5)
  np.testing.assert_allclose(by_params['b'], [5.0], rtol=1e-6)
  v, u = w.ravel()
  np.testing.assert_allclose(
    by_x.ravel(), [2 * v, 2 * u + 3 * v, 3 * u], rtol=1e-5
  )


def test_weights_are_split_as_declared():
  mapping = [None, None, 'data', 'mdl']
  config = conv.Conv2D.config(
    filter_shape=(1, 1, 2, 3),
    bias=True,
    weight_split_dims_mapping=conv.Conv2D.WeightSharding.config(wt=mapping),
  )
  x = jnp.ones([1, 1, 1, 2])
  boxes = config.Instantiate().init_boxed(jax.random.key(0), x)[PARAMS]
  split = {k: b.meta.tensor_split_dims_mapping for k, b in boxes.items()}
  assert {k: list(v) for k, v in split.items()} == {'w': mapping, 'b': ['mdl']}


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'filter_shape': (3, 1, 2)}, 'filter_shape is .3, 1, 2.; expected 4'),
    ({'filter_stride': (2,)}, 'filter_stride is .2.; expected 2'),
    ({'filter_stride': 2}, 'filter_stride is 2; expected 2 numbers'),
    ({'dilations': (1, 0)}, 'dilations is .1, 0.; expected 2'),
    ({'filter_stride': (0, 1)}, 'at least 1'),
    ({'dilations': (1, 1, 1)}, 'Conv2D.dilations'),
    ({'padding': 'CAUSAL'}, 'expected one of SAME, VALID'),
    ({'is_causal': True}, 'requires tf_equivalent_padding'),
    (
      {'is_causal': True, 'tf_equivalent_padding': True, 'padding': 'VALID'},
      "is_causal requires padding='SAME'",
    ),
    ({'filter_shape': (1, 1, 2, 2)}, 'inputs of 3 channels do not match'),
    ({'filter_shape': (1, 1, 1, 4)}, 'whose quotient divides 4'),
  ],
)
def test_fields_that_do_not_fit_are_an_error(fields, message):
  fields = {'filter_shape': (1, 1, 3, 2), **fields}
  layer = conv.Conv2D.config(**fields).Instantiate()
  with pytest.raises(errors.UserError, match=message):
    layer.init_boxed(jax.random.key(0), jnp.ones([1, 4, 4, 3]))


def test_inputs_of_another_rank_are_an_error():
  layer = conv.Conv2D.config(filter_shape=(1, 1, 3, 2)).Instantiate()
  with pytest.raises(errors.UserError, match='expected 4 dimensions'):
    layer.init_boxed(jax.random.key(0), jnp.ones([1, 4, 3]))


def test_depthwise_works_the_filter_out_by_itself():
  depthwise = conv.Conv2D.HParamsDepthwise
  with pytest.raises(errors.UserError, match='computes filter_shape'):
    depthwise(kernel_shape=(1, 1), in_channels=2, filter_shape=(1, 1, 1, 2))
  with pytest.raises(errors.UserError, match='kernel_shape is .1.; expected 2'):
    depthwise(kernel_shape=(1,), in_channels=2)
