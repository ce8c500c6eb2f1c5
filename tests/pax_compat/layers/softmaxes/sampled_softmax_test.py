"""The sampled softmax against numpy, one position at a time.

Shapes: B batch, T time, D input dims, V classes, S sampled classes.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import PARAMS, RANDOM, ROW_PROBES
from pax_compat.layer_core.row_gradients import no_statistics
from pax_compat.layers.softmaxes import full_softmax, sampled_softmax
from pax_compat.layers.softmaxes.candidate_sampling import Sample
from tests.pax_compat.layers import numpy_rnn

B, T, D, V, S = 2, 3, 4, 11, 5
RNG = np.random.default_rng(0)
X = RNG.normal(size=[B, T, D]).astype(np.float32)
IDS = np.array([[0, 4, 9], [4, 10, 2]])
WEIGHTS = np.array([[1, 1, 0], [0.5, 2, 1]], np.float32)
PARAMETERS = {
  'w': RNG.normal(size=[V, D]).astype(np.float32),
  'b': RNG.normal(size=[V]).astype(np.float32),
}
# The right classes 4 and 2 are among those sampled.
SAMPLE = Sample(np.array([3, 2, 0, 4, 7]), np.int32(9))


class _Given(sampled_softmax.SampledSoftmax):
  """A softmax with a sample that is known."""

  def draw_sample(self):
    return jax.tree.map(jnp.asarray, SAMPLE)


def _layer(cls=_Given, **fields):
  return cls.config(
    **{'input_dims': D, 'num_classes': V, 'num_sampled': S, **fields}
  ).Instantiate()


def _apply(layer, parameters=PARAMETERS, x=X, do_eval=False, **more):
  with base_layer.eval_mode(do_eval):
    return layer.apply(
      {PARAMS: parameters, **more},
      x,
      WEIGHTS,
      class_ids=IDS,
      rngs={RANDOM: jax.random.key(0)},
    )


def _xent(parameters, x):
  """Returns the cross-entropy [B, T]."""

  def expected_count(k):
    p = np.log((k + 2) / (k + 1)) / np.log(V + 1)
    return 1 - (1 - p) ** float(SAMPLE.num_tries)

  def logit(x, k):
    found = x @ parameters['w'][k] - np.log(expected_count(k))
    return found + parameters['b'][k] if 'b' in parameters else found

  result = np.zeros([B, T])
  for position in np.ndindex(B, T):
    right = IDS[position]
    others = [k for k in SAMPLE.classes if k != right]
    logits = np.array([logit(x[position], k) for k in [right, *others]])
    result[position] = np.log(np.exp(logits).sum()) - logits[0]
  return result


@pytest.mark.parametrize('use_bias', [True, False])
def test_training_is_over_the_sample(use_bias):
  parameters = PARAMETERS if use_bias else {'w': PARAMETERS['w']}
  output = _apply(_layer(use_bias=use_bias), parameters)
  xent = _xent(parameters, X.astype(np.float64))
  np.testing.assert_allclose(output.per_example_xent, xent, rtol=1e-5)
  total = (xent * WEIGHTS).sum()
  np.testing.assert_allclose(output.total_xent, total, rtol=1e-5)
  np.testing.assert_allclose(output.total_weight, WEIGHTS.sum())
  np.testing.assert_allclose(output.avg_xent, total / WEIGHTS.sum(), rtol=1e-5)
  np.testing.assert_array_equal(output.per_example_argmax, IDS)
  assert not {'logits', 'log_probs'} & set(output)


def test_gradients_are_those_of_differences():
  arrays = {**PARAMETERS, 'x': X}
  layer = _layer()

  def ours(arrays):
    arrays = dict(arrays)
    x = arrays.pop('x')
    return _apply(layer, arrays, x).total_xent

  def in_numpy(arrays):
    return (_xent(arrays, arrays['x']) * WEIGHTS).sum()

  gradients = jax.jit(jax.grad(ours))(arrays)
  for name, array in arrays.items():
    direction = RNG.normal(size=array.shape)
    only = {k: np.zeros(v.shape) for k, v in arrays.items()}
    expected = numpy_rnn.derivative(in_numpy, arrays, {**only, name: direction})
    np.testing.assert_allclose(
      np.sum(gradients[name] * direction), expected, rtol=1e-4, err_msg=name
    )
  # Only rows of the sample and of right classes have a gradient.
  used = np.unique(np.concatenate([SAMPLE.classes, IDS[WEIGHTS > 0]]))
  moved = np.any(np.array(gradients['w']) != 0, axis=1)
  np.testing.assert_array_equal(np.flatnonzero(moved), used)


@pytest.mark.parametrize(
  'fields',
  [{}, {'soft_cap_logits': 2.0}, {'logits_abs_max': 0.5}, {'chunk_size': 2}],
)
def test_evaluation_is_over_all_classes(fields):
  full = full_softmax.FullSoftmax.config(
    input_dims=D, num_classes=V, **fields
  ).Instantiate()
  same = {
    'logits_ffn': {
      'linear': {'w': PARAMETERS['w'].T},
      'bias': {'b': PARAMETERS['b']},
    }
  }
  output = _apply(_layer(**fields), do_eval=True)
  expected = _apply(full, same, do_eval=True)
  assert set(output) == set(expected)
  for name, value in expected.items():
    np.testing.assert_allclose(
      output[name], value, rtol=1e-5, atol=1e-6, err_msg=name
    )


def test_given_distributions_are_over_all_classes_in_training():
  layer = _layer()
  probabilities = RNG.dirichlet(np.ones(V), [B, T]).astype(np.float32)
  output = layer.apply(
    {PARAMS: PARAMETERS}, X, WEIGHTS, class_probabilities=probabilities
  )
  logits = X @ PARAMETERS['w'].T + PARAMETERS['b']
  logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  np.testing.assert_allclose(
    output.per_example_xent, -(probabilities * logp).sum(-1), rtol=1e-5
  )


def test_samples_are_drawn_anew_for_each_key():
  layer = _layer(sampled_softmax.SampledSoftmax)

  @jax.jit
  def xent(key):
    return layer.apply(
      {PARAMS: PARAMETERS}, X, WEIGHTS, class_ids=IDS, rngs={RANDOM: key}
    ).total_xent

  found = [float(xent(jax.random.key(seed))) for seed in (0, 1, 0)]
  assert found[0] == found[2] != found[1]


def test_a_sample_of_all_classes_is_near_the_full_softmax():
  full = full_softmax.FullSoftmax.config(
    input_dims=D, num_classes=V
  ).Instantiate()
  layer = _layer(sampled_softmax.SampledSoftmax, num_sampled=V)
  np.testing.assert_allclose(
    _apply(layer).total_xent,
    _apply(
      full,
      {
        'logits_ffn': {
          'linear': {'w': PARAMETERS['w'].T},
          'bias': {'b': PARAMETERS['b']},
        }
      },
    ).total_xent,
    # Each class was drawn so often that its expected count is near 1.
    rtol=1e-2,
  )


def test_facts_about_sparse_gradients():
  layer = _layer(sparse_gradients=True)

  def loss(parameters, probes):
    more = {ROW_PROBES: probes}
    return _apply(layer, parameters, **more).total_xent

  probes = {name: no_statistics(V) for name in ('w', 'b')}
  gradients, statistics = jax.grad(loss, (0, 1))(PARAMETERS, probes)
  plain = jax.grad(loss)(PARAMETERS, {})
  for name in ('w', 'b'):
    np.testing.assert_allclose(gradients[name], plain[name], rtol=1e-6)
    ids = np.concatenate([IDS.ravel(), SAMPLE.classes])
    np.testing.assert_array_equal(
      statistics[name].counts, np.bincount(ids, minlength=V)
    )

  def of_rows(rows):
    logits = jnp.concatenate(
      [
        jnp.sum(X.reshape(-1, D) * rows[: B * T], -1, keepdims=True),
        X.reshape(-1, D) @ rows[B * T :].T,
      ],
      -1,
    )
    ids = np.concatenate([IDS.ravel(), SAMPLE.classes])
    p = np.log((ids + 2) / (ids + 1)) / np.log(V + 1)
    shift = PARAMETERS['b'][ids] - np.log(1 - (1 - p) ** 9.0)
    hits = IDS.reshape(-1, 1) == SAMPLE.classes
    others = jnp.where(hits, -jnp.inf, logits[:, 1:] + shift[B * T :])
    right = logits[:, 0] + shift[: B * T]
    all_logits = jnp.concatenate([right[:, None], others], -1)
    xent = jax.nn.logsumexp(all_logits, -1) - right
    return jnp.sum(xent * WEIGHTS.ravel())

  ids = np.concatenate([IDS.ravel(), SAMPLE.classes])
  by_rows = jax.grad(of_rows)(jnp.asarray(PARAMETERS['w'][ids]))
  np.testing.assert_allclose(
    statistics['w'].sum_squares, np.sum(np.square(by_rows)), rtol=1e-4
  )


def test_weights_and_what_they_are_split_over():
  layer = _layer(
    bias_init=0.25,
    sparse_gradients=True,
    weight_split_dims_mapping=_Given.WeightSharding.config(wt=['x', 'y']),
  )
  init = functools.partial(layer.init_boxed, class_ids=IDS)
  variables = init(jax.random.key(0), X, WEIGHTS)
  boxed = variables[PARAMS]
  assert boxed['w'].meta.tensor_split_dims_mapping == ['y', 'x']
  assert boxed['b'].meta.tensor_split_dims_mapping == ['y']
  np.testing.assert_array_equal(boxed['b'].value, np.full(V, 0.25))
  assert boxed['w'].value.shape == (V, D)
  assert set(variables[ROW_PROBES]) == {'w', 'b'}


@pytest.mark.parametrize(
  'fields',
  [
    {'num_sampled': 0},
    {'num_sampled': V + 1},
    {'z_loss_weight': 0.1},
    {'label_smoothing_prob': 0.1},
  ],
)
def test_fields_that_do_not_go_with_samples_are_refused(fields):
  (field,) = fields
  with pytest.raises(errors.UserError, match=f'_Given.{field} is'):
    _apply(_layer(**fields))
