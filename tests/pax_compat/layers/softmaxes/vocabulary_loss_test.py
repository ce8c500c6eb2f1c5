"""Cross-entropy in chunks against the plain formula, by numpy and by autodiff.

Shapes: B batch, T time, D model dims, V classes.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from pax_compat import errors
from pax_compat.layers.softmaxes import vocabulary_loss
from pax_compat.layers.softmaxes.vocabulary_loss import Target

B, T, D, V = 3, 7, 4, 11
RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(B, T, D)).astype(np.float32)
WEIGHTS = {
  'w': RNG.normal(size=(D, V)).astype(np.float32),
  'b': RNG.normal(size=(V,)).astype(np.float32),
}
IDS = RNG.integers(0, V, (B, T))
# Some positions count in full, some in part, some not at all.
CLASS_WEIGHTS = RNG.choice([0, 0.5, 1], (B, T)).astype(np.float32)
SHARP = Target()
TARGETS = [SHARP, Target(on=0.9, off=0.1 / (V - 1))]


def _logits(weights, inputs):
  return 3 * jnp.tanh((inputs @ weights['w'] + weights['b']) / 3)


def _chunked(weights, inputs, class_weights=CLASS_WEIGHTS, ids=IDS, **options):
  options = {'chunk_size': 2, **options}
  return vocabulary_loss.chunked_cross_entropy(
    lambda x: _logits(weights, x), inputs, ids, class_weights, **options
  )


def _plain(weights, inputs, class_weights=CLASS_WEIGHTS, target=SHARP):
  """The same by jax.nn, in one piece."""
  logits = _logits(weights, inputs)
  one_hot = jax.nn.one_hot(IDS, V)
  probs = target.off + (target.on - target.off) * one_hot
  xent = -jnp.sum(probs * jax.nn.log_softmax(logits), -1)
  log_z = jax.nn.logsumexp(logits, -1)
  return vocabulary_loss.CrossEntropy(
    jnp.sum(xent * class_weights), xent, log_z, jnp.argmax(logits, -1)
  )


def _assert_close(actual, expected, rtol=1e-6):
  """Fails where arrays differ by more than `rtol` of their largest value."""
  for a, e in zip(
    jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True
  ):
    scale = max(float(np.abs(e).max()), 1e-12)
    np.testing.assert_allclose(a / scale, e / scale, rtol=0, atol=rtol)


@pytest.mark.parametrize('chunk_size', [1, 2, 3, 7, 100])
@pytest.mark.parametrize('target', TARGETS)
def test_values(chunk_size, target):
  got = jax.jit(
    lambda x: _chunked(WEIGHTS, x, chunk_size=chunk_size, target=target)
  )(INPUTS)
  logits = INPUTS.astype(np.float64) @ WEIGHTS['w'] + WEIGHTS['b']
  logits = 3 * np.tanh(logits / 3)
  probs = np.full((B, T, V), target.off)
  np.put_along_axis(probs, IDS[..., None], target.on, -1)
  xent = -(probs * special.log_softmax(logits, -1)).sum(-1)
  np.testing.assert_allclose(got.xent, xent, rtol=1e-5)
  np.testing.assert_allclose(got.total, (xent * CLASS_WEIGHTS).sum(), rtol=1e-5)
  np.testing.assert_allclose(
    got.log_z, special.logsumexp(logits, -1), rtol=1e-5
  )
  np.testing.assert_array_equal(got.argmax, logits.argmax(-1))
  log_probs = special.log_softmax(logits, -1)
  nll = -np.take_along_axis(log_probs, IDS[..., None], -1)[..., 0]
  np.testing.assert_allclose(got.nll, nll, rtol=1e-5)


def test_no_gradient_flows_through_what_is_told_of_the_right_class():
  def in_one_piece(inputs):
    logits = _logits(WEIGHTS, inputs)
    return vocabulary_loss.cross_entropy(logits, IDS, CLASS_WEIGHTS)

  for fn in (in_one_piece, lambda x: _chunked(WEIGHTS, x)):
    gradient = jax.grad(lambda x, fn=fn: jnp.sum(fn(x).nll))(INPUTS)
    np.testing.assert_array_equal(gradient, 0)


# What is differentiated, of a `CrossEntropy`.
LOSSES = {
  'total': lambda r: 0.3 * r.total,
  'xent': lambda r: jnp.sum(jnp.sin(r.xent)),
  'log_z': lambda r: jnp.sum(jnp.square(r.log_z)),
  'all': lambda r: r.total + jnp.sum(r.xent * r.log_z),
}


@pytest.mark.parametrize('loss', LOSSES)
@pytest.mark.parametrize('target', TARGETS)
@pytest.mark.parametrize('gradient_in_forward', [True, False])
def test_gradients_by_way_of_each_result(loss, target, gradient_in_forward):
  options = dict(target=target, gradient_in_forward=gradient_in_forward)
  args = (WEIGHTS, INPUTS, CLASS_WEIGHTS)
  got = jax.grad(lambda *a: LOSSES[loss](_chunked(*a, **options)), (0, 1, 2))
  want = jax.grad(lambda *a: LOSSES[loss](_plain(*a, target=target)), (0, 1, 2))
  _assert_close(jax.jit(got)(*args), want(*args))


@pytest.mark.parametrize(('loss', 'loops'), [('total', 1), ('xent', 2)])
def test_the_gradient_of_the_total_needs_no_second_loop(loss, loops):
  def with_aux(weights):
    result = _chunked(weights, INPUTS)
    return LOSSES[loss](result), result

  jaxpr = jax.make_jaxpr(jax.grad(with_aux, has_aux=True))(WEIGHTS)
  assert str(jaxpr).count(' scan[') == loops


def test_gradients_without_jit_under_remat_and_inside_an_inner_jit():
  want = jax.grad(lambda *a: _plain(*a).total, (0, 1))(WEIGHTS, INPUTS)

  def total(weights, inputs):
    return _chunked(weights, inputs).total

  for wrapped in (total, jax.checkpoint(total), jax.jit(total)):
    got = jax.grad(wrapped, (0, 1))(WEIGHTS, INPUTS)
    _assert_close(got, want)


def test_only_what_is_differentiated_gets_a_gradient():
  want = jax.grad(lambda x: _plain(WEIGHTS, x).total)(INPUTS)
  _assert_close(jax.grad(lambda x: _chunked(WEIGHTS, x).total)(INPUTS), want)
  want = jax.grad(lambda w: _plain(w, INPUTS).total)(WEIGHTS)
  _assert_close(jax.grad(lambda w: _chunked(w, INPUTS).total)(WEIGHTS), want)


def test_each_example_of_a_batch_by_itself():
  def gradients(function):
    def total(weights, x, ids, w):
      return function(weights, x[None], ids[None], w[None])

    return jax.vmap(jax.grad(total), (None, 0, 0, 0))(
      WEIGHTS, INPUTS, IDS, CLASS_WEIGHTS
    )

  def plain(weights, x, ids, w):
    return vocabulary_loss.cross_entropy(_logits(weights, x), ids, w).total

  _assert_close(
    gradients(lambda p, x, ids, w: _chunked(p, x, w, ids).total),
    gradients(plain),
  )


def test_the_logits_of_a_batch_do_not_exist():
  """Neither forward, nor backward, nor in the second loop for `xent`."""
  length, classes, dims = 64, 4096, 8
  whole = 2 * length * classes * 4
  w = jnp.zeros([dims, classes])
  x, ids = jnp.zeros([2, length, dims]), jnp.zeros([2, length], jnp.int32)

  def chunked(w, x):
    return vocabulary_loss.chunked_cross_entropy(
      lambda x: x @ w, x, ids, jnp.ones(ids.shape), chunk_size=4
    )

  def plain(w, x):
    return vocabulary_loss.cross_entropy(x @ w, ids, jnp.ones(ids.shape))

  def temporary_bytes(function):
    compiled = jax.jit(function).lower(w, x).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  def gradient(function, name):
    return jax.grad(lambda *a: jnp.sum(getattr(function(*a), name)), (0, 1))

  assert temporary_bytes(gradient(plain, 'total')) > whole
  for function in (
    chunked,
    gradient(chunked, 'total'),
    gradient(chunked, 'xent'),
    gradient(chunked, 'log_z'),
  ):
    assert temporary_bytes(function) < whole / 2


def test_bfloat16_inputs_and_weights_keep_their_dtype():
  def low(x):
    return jnp.asarray(x, jnp.bfloat16)

  weights = jax.tree.map(low, WEIGHTS)
  args = (weights, low(INPUTS))
  gradients = jax.grad(lambda *a: _chunked(*a).total, (0, 1))(*args)
  assert {g.dtype for g in jax.tree.leaves(gradients)} == {jnp.bfloat16.dtype}
  result = _chunked(*args)
  assert result.xent.dtype == result.total.dtype == jnp.float32
  # Weights' gradients are summed in float32: of the same inputs, rounded once.
  wide = jax.tree.map(lambda x: x.astype(jnp.float32), args)
  want = jax.grad(lambda *a: _plain(*a).total, (0, 1))(*wide)
  _assert_close(
    jax.tree.map(lambda g: np.asarray(g, np.float32), gradients), want, 0.02
  )


def test_large_logits_stay_finite():
  weights = {'w': 1e4 * WEIGHTS['w'], 'b': WEIGHTS['b']}

  def total(weights):
    return vocabulary_loss.chunked_cross_entropy(
      lambda x: x @ weights['w'], INPUTS, IDS, CLASS_WEIGHTS, chunk_size=2
    ).total

  value, gradients = jax.value_and_grad(total)(weights)
  log_probs = special.log_softmax(INPUTS.astype(np.float64) @ weights['w'], -1)
  right = np.take_along_axis(log_probs, IDS[..., None], -1)[..., 0]
  np.testing.assert_allclose(value, -(right * CLASS_WEIGHTS).sum(), rtol=1e-5)
  assert np.isfinite(gradients['w']).all()


def test_an_id_that_is_no_class_does_no_harm_where_it_does_not_count():
  ids = np.where(CLASS_WEIGHTS == 0, -1, IDS)
  got = jax.value_and_grad(lambda w: _chunked(w, INPUTS, ids=ids).total)(
    WEIGHTS
  )
  want = jax.value_and_grad(lambda w: _plain(w, INPUTS).total)(WEIGHTS)
  _assert_close(got, want)


def test_the_first_of_equal_logits_is_the_most_likely_class():
  logits = jnp.array([[0.0, 2.0, 2.0], [1.0, 1.0, 1.0], [-1.0, -2.0, 0.0]])
  got = vocabulary_loss.cross_entropy(logits, jnp.zeros(3, int), jnp.ones(3))
  np.testing.assert_array_equal(got.argmax, [1, 0, 2])


def test_soft_targets():
  probs = RNG.dirichlet(np.ones(V), (B, T))
  logits = RNG.normal(size=(B, T, V)).astype(np.float32)
  got = vocabulary_loss.soft_cross_entropy(
    logits, jnp.asarray(probs), CLASS_WEIGHTS
  )
  xent = -(probs * special.log_softmax(logits.astype(float), -1)).sum(-1)
  np.testing.assert_allclose(got.xent, xent, rtol=1e-5)
  np.testing.assert_allclose(got.total, (xent * CLASS_WEIGHTS).sum(), rtol=1e-5)


def test_a_chunk_has_a_position():
  with pytest.raises(errors.UserError, match='chunk_size is 0; .*1 or more'):
    _chunked(WEIGHTS, INPUTS, chunk_size=0)


def test_best_chunks_on_a_cpu():
  best = vocabulary_loss.best_chunk_size
  assert best((8, 256, 512)) == 0  # A small vocabulary,
  assert best((4096, 8192)) == 0  # no time axis,
  assert best((1, 128, 16384)) == 0  # or a small batch.
  assert best((8, 256, 8192)) == 16
  # A minimum number of positions, so that the products are large.
  assert best((8, 256, 262144)) == 16
  # Chunks of equal length: two of 65 rather than one of 128 and one of 2.
  assert best((1, 130, 32768)) == 65
  # Eight devices have as many positions each.
  assert best((64, 256, 8192), num_devices=8) == 16


def test_best_chunks_on_an_accelerator(monkeypatch):
  monkeypatch.setattr(vocabulary_loss.sharding, 'platform', lambda: 'tpu')
  best = vocabulary_loss.best_chunk_size
  assert best((32, 1024, 8192)) == 0  # A GiB of float32.
  assert best((32, 1024, 16000)) == 512
  assert best((512, 1024, 16000), num_devices=16) == 512
