"""Adafactor in Lingvo's form, against the formula; see also tests/adaptors."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pax_compat import errors, optimizers
from tests.pax_compat.optimizers import stepping
from tests.pax_compat.optimizers.stepping import RATE, assert_steps, rms

EPSILON = 1e-30


def _config(**fields):
  return optimizers.ShardedAdafactor.config(
    learning_rate=RATE,
    **{'decay_method': 'adam', 'decay_adam': 0.9, **fields},
  )


def _directions(gradients, dims=None, clip=1.0, decay_at=None, epsilon=EPSILON):
  """Yields g / sqrt(second moment), clipped.

  Args:
    gradients: of one weight.
    dims: that `vr` and `vc` lack; None for a full second moment.
    clip: the root mean square that is allowed.
    decay_at: the decay in step t, from 1 on.
    epsilon: added to squares.
  """
  v = vr = vc = 0.0
  for t, g in enumerate(gradients, 1):
    d = decay_at(t) if decay_at else 0.9 * (1 - 0.9 ** (t - 1)) / (1 - 0.9**t)
    squares = g * g + epsilon
    if dims is None:
      v = d * v + (1 - d) * squares
    else:
      vr = d * vr + (1 - d) * np.mean(squares, dims[0])
      vc = d * vc + (1 - d) * np.mean(squares, dims[1])
      rows = np.expand_dims(vr / np.mean(vr, -1, keepdims=True), dims[0])
      v = rows * np.expand_dims(vc, dims[1])
    x = g / np.sqrt(v)
    yield x if clip is None else x / max(1.0, rms(x) / clip)


def _last_two(shape):
  return (len(shape) - 1, len(shape) - 2) if len(shape) >= 2 else None


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'clip_threshold': None},
    {'clip_threshold': 0.3},
    {'factored': False},
    {'multiply_by_parameter_scale': True},
    {'multiply_by_parameter_scale': True, 'epsilon2_param_scale_reg': 10.0},
    {'beta1': 0.7, 'quantized_dtype': 'float32'},
    {'weight_decay': 0.1},
    {'maybe_inf_to_nan': False},
    {'epsilon1_grad_sq_reg': 0.5},
  ],
)
def test_steps(fields):
  """Every weight of rank 2 and up is factored over its last dimensions."""
  beta1, scaled = fields.get('beta1', 0.0), 'multiply_by_parameter_scale'

  def formula(name, w, gradients):
    del name
    dims = _last_two(w.shape) if fields.get('factored', True) else None
    m = 0.0
    for x in _directions(
      gradients,
      dims,
      clip=fields.get('clip_threshold', 1.0),
      epsilon=fields.get('epsilon1_grad_sq_reg', EPSILON),
    ):
      floor = fields.get('epsilon2_param_scale_reg', 1e-3)
      scale = max(rms(w), floor) if fields.get(scaled) else 1.0
      m = beta1 * m + (1 - beta1) * RATE * scale * x
      w = w - m - RATE * fields.get('weight_decay', 0.0) * w
      yield w

  assert_steps(_config(**fields), formula)


def test_decay_by_a_power():
  def formula(name, w, gradients):
    del name
    decay_at = lambda t: 1 - (t + 3.0) ** -0.7  # noqa: E731
    for x in _directions(gradients, _last_two(w.shape), decay_at=decay_at):
      w = w - RATE * x
      yield w

  config = _config(decay_method='pow', decay_pow=0.7, decay_offset=-3)
  assert_steps(config, formula)


@pytest.mark.parametrize('beta1', [0.0, 0.5])
def test_layerwise_adaptation(beta1):
  def formula(name, w, gradients):
    m = 0.0
    for x in _directions(gradients, _last_two(w.shape)):
      m = beta1 * m + (1 - beta1) * RATE * x
      step = m + RATE * 0.1 * w
      ratio = rms(w) / rms(step / RATE) if name != 'heads' else 1.0
      w = w - ratio * step
      yield w

  config = _config(
    beta1=beta1,
    quantized_dtype='float32',
    weight_decay=0.1,
    layerwise_adaptation=True,
    exclude_from_layerwise_adaptation=['h.*s$'],
  )
  assert_steps(config, formula)


def test_layerwise_adaptation_without_a_learning_rate():
  config = _config(layerwise_adaptation=True).set(learning_rate=0.0)
  for name, value in stepping.run(config)[-1].items():
    np.testing.assert_array_equal(value, stepping.weights()[name])


def test_weight_decay_by_name():
  decays = {'.*a': 0.1, 'params/heads': 0.2, 'matrix': 0.3}
  applied = {'scalar': 0.1, 'small': 0.1, 'matrix': 0.3, 'heads': 0.2}
  # The last match counts, and matches start at the start of the name.
  decays['atrix'] = 5.0

  def formula(name, w, gradients):
    decay = applied.get(name, 0.1 if 'a' in name else 0.0)
    for x in _directions(gradients, _last_two(w.shape)):
      w = w - RATE * (x + decay * w)
      yield w

  assert_steps(_config(weight_decay=decays), formula)


def _momentum(dtype, steps=stepping.STEPS):
  """Returns the weights, and the momentum, its scale, after the steps."""
  transformation = (
    _config(beta1=0.9, quantized_dtype=dtype)
    .Instantiate()
    .grad_transformation()
  )
  weights = stepping.weights()
  state = transformation.init(weights)
  for gradient in stepping.gradients(steps):
    updates, state = transformation.update(gradient, state, weights)
    weights = optax.apply_updates(weights, updates)
  return weights, state[0].m, state[0].m_scale


@pytest.mark.parametrize(
  'dtype,tolerance',
  [('bfloat16', 2**-8), ('int8', 2 / 127), ('int16', 2 / 32767)],
)
def test_a_quantized_momentum(dtype, tolerance):
  weights, m, scale = _momentum(dtype)
  exact, exact_m, _ = _momentum('float32')
  for name, want in exact.items():
    is_quantized = dtype.startswith('int') and want.ndim > 0
    kept = dtype if is_quantized or dtype == 'bfloat16' else 'float32'
    assert m[name].dtype == jnp.dtype(kept)
    assert scale[name].shape == (want.shape[1:] if is_quantized else (1,))
    value = m[name].astype(jnp.float32)
    value = value * scale[name] if is_quantized else value
    bound = tolerance * np.max(np.abs(exact_m[name]))
    np.testing.assert_allclose(value, exact_m[name], atol=bound)
    np.testing.assert_allclose(weights[name], want, atol=2 * bound)
  assert not np.array_equal(weights['matrix'], exact['matrix'])


def test_paxs_preset():
  config = optimizers.ShardedAdafactor.HParamsAdamB()
  config.learning_rate = RATE
  history = stepping.run(config)
  exact = stepping.run(config.set(quantized_dtype='float32'))
  for name, want in exact[-1].items():
    np.testing.assert_allclose(history[-1][name], want, atol=2e-3)


@pytest.mark.parametrize(
  'shape,fields,want',
  [
    ((5,), {}, None),
    ((2, 3), {}, (1, 0)),
    ((2, 3, 4), {}, (2, 1)),
    ((2, 3, 4), {'factored': False}, None),
    ((6, 4, 5), {'min_dim_size_to_factor': 5}, (0, 2)),
    ((6, 4, 5), {'min_dim_size_to_factor': 6}, None),
    ((4, 4), {'min_dim_size_to_factor': 4}, (0, 1)),
    ((128, 127), {'sort_factored_second_moment_dims': True}, None),
    ((128, 128), {'sort_factored_second_moment_dims': True}, (0, 1)),
  ],
)
def test_factored_dims(shape, fields, want):
  if 'min_dim_size_to_factor' in fields:
    fields = {**fields, 'sort_factored_second_moment_dims': True}
  optimizer = _config(beta1=0.5, **fields).Instantiate()
  assert optimizer.factored_dims(shape) == want
  state = jax.eval_shape(
    optimizer.grad_transformation().init,
    {'w': jax.ShapeDtypeStruct(shape, jnp.float32)},
  )[0]
  expected = {'v': shape, 'vr': (1,), 'vc': (1,), 'm_scale': shape[1:]}
  if want is not None:
    removed = {'vr': want[0], 'vc': want[1], 'm_scale': 0}
    expected = {
      name: tuple(n for i, n in enumerate(shape) if i != dim)
      for name, dim in removed.items()
    } | {'v': (1,)}
    for name, dim in removed.items():
      assert optimizer.reduced_dim(name, shape, expected[name]) == dim
  for name, leaf_shape in expected.items():
    assert getattr(state, name)['w'].shape == leaf_shape, name


def test_an_overflow_does_not_hide():
  """A gradient whose square is infinite would be divided by infinity."""
  weights = {'w': jnp.ones([2])}
  gradient = {'w': jnp.array([1.0, 1e30])}

  def step(**fields):
    transformation = _config(**fields).Instantiate().grad_transformation()
    state = transformation.init(weights)
    return transformation.update(gradient, state, weights)[0]['w']

  assert np.isnan(step()[1])
  assert step(maybe_inf_to_nan=False)[1] == 0.0


@pytest.mark.parametrize(
  'fields,message',
  [
    ({'decay_method': ''}, "decay_method is ''; expected one of 'adam', 'pow'"),
    ({'decay_adam': 0.0}, 'decay_adam is 0.0; .* needs a positive one'),
    ({'decay_method': 'pow'}, 'decay_pow is 0.0; .* needs a positive one'),
    ({'quantized_dtype': 'int4'}, "'int4'; expected one of int8, int16"),
    ({'per_var_learning_summary': True}, 'per_var_learning_summary is True'),
    ({'name': 'mine'}, "name is 'mine', expected '': it is for per_var"),
    (
      {'respect_skip_lp_regularization': True},
      'expected False: decoupled_weight_decay respects it',
    ),
    ({'weight_decay': {'(': 0.1}}, r"'\(' is not a regular expression"),
    ({'exclude_from_layerwise_adaptation': ['*']}, 'not a regular expression'),
  ],
)
def test_mistakes(fields, message):
  with pytest.raises(errors.UserError, match=f'ShardedAdafactor.*{message}'):
    _config(**fields).Instantiate()
