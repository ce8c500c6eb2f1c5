"""How equations use weights."""

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from pax_compat.layer_core.gradients import ghost_norms
from pax_compat.learners.gradients import weight_uses

_W = jnp.ones([3, 3])


def _times(w, x):
  tap = ghost_norms.Tap(ghost_norms.PRODUCT, x.ndim, 'w')
  return checkpoint_name(x @ w, tap.mark())


def _scanned(weights, x):
  return jax.lax.scan(lambda c, w: (_times(w, c), None), x, weights)[0]


def _repeated(w, x):
  return jax.lax.fori_loop(0, 3, lambda _, c: _times(w, c), x)


@jax.custom_jvp
def _own(w, x):
  return _times(w, x)


_own.defjvp(lambda primals, tangents: (_own(*primals), tangents[1]))


def _uses(fn, weight):
  closed = jax.make_jaxpr(fn)(weight, jnp.ones([2, 3]))
  return weight_uses.of_weights(closed, {0: 'w'})


@pytest.mark.parametrize(
  'fn,weight,suffices',
  [
    (_times, _W, True),
    (lambda w, x: _times(w.astype(jnp.bfloat16).T, x), _W, True),
    (jax.jit(_times), _W, True),
    (jax.checkpoint(_times), _W, True),
    (_scanned, jnp.ones([2, 3, 3]), True),
    (lambda w, x: jax.checkpoint(_scanned)(w, x), jnp.ones([2, 3, 3]), True),
    # Used again, in a loop, for something else, or not in that form.
    (lambda w, x: _times(w, _times(w, x)), _W, False),
    (lambda w, x: _times(w, x) + jnp.sum(w), _W, False),
    (lambda w, x: _times(w, x) @ w, _W, False),
    (lambda w, x: x @ w, _W, False),
    (lambda w, x: _times(jnp.round(w), x), _W, False),
    (lambda w, x: (_times(w, x), w), _W, True),
    (_repeated, _W, False),
    (lambda w, x: jax.vmap(lambda x: _times(w, x))(x), _W, False),
    (lambda w, x: _scanned(jnp.stack([w, w]), x), _W, False),
    (
      lambda w, x: jax.lax.cond(
        x[0, 0] > 0, lambda: _times(w, x), lambda: _times(w, x + 1)
      ),
      _W,
      False,
    ),
    (_own, _W, False),
  ],
)
def test_a_tap_suffices_for_a_single_use(fn, weight, suffices):
  found = ghost_norms.Found(sizes={'w': {9}})
  uses = _uses(fn, weight)
  assert uses.tap_suffices('w', weight.size, found) == suffices


def test_rank_is_that_within_a_loop():
  assert _uses(_scanned, jnp.ones([2, 3, 3])).rank('w') == 2
  assert _uses(lambda w, x: x, _W).rank('w') == 0
