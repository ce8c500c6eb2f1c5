"""GShard's gates and mixtures of experts against Lingvo's, run for real.

Shapes: B batch, T time, D model dims, G groups, S tokens of a group, E experts.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.translate import registry
from adaptors.translate.gshard import gshard_moe
from adaptors.translate.view import ParamsView, Report
from pax_compat import base_layer
from pax_compat.layers.normalizations import norm_layers
from pax_compat.layers.transformers import expert_gating
from tests.adaptors.translate import parity

B, T, D, E, G = 2, 12, 6, 4, 3
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(3, 16, E)).astype(np.float32)
LOGITS[..., 2] += 1.0
PADDINGS = np.zeros([3, 16], np.float32)
PADDINGS[1, 9:] = PADDINGS[2, ::3] = 1
SEGMENT_IDS = np.array([[1] * 5 + [2] * 7, [1] * 9 + [0] * 3], np.int32)
# As Lingvo's layers around a mixture do, padding is zeroed before it.
X = RNG.normal(size=(B, T, D)).astype(np.float32)
X *= (SEGMENT_IDS > 0)[..., None]


@pytest.fixture(autouse=True)
def _not_eager():
  """GShard's layers refuse to compute while Lingvo's eager flag is on."""
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  py_utils.SetEagerMode(False, test_mode=True)
  yield
  py_utils.SetEagerMode(True, test_mode=True)


def _layers():
  return lingvo_runtime.module('lingvo.core.gshard_layers')


def _lingvo_gates(fn, *args, **kwargs):
  """Returns what a gate of Lingvo gives, and the gradient of its sum.

  The sum is that of the loss and of what slots count, each weighted at random.
  """
  tf = lingvo_runtime.module('tensorflow')
  with lingvo_runtime.cluster():
    logits = tf.constant(LOGITS)
    with tf.GradientTape() as tape:
      tape.watch(logits)
      loss, combine, dispatch = fn(logits, *args, **kwargs)
      total = loss + tf.reduce_sum(combine * _weights(combine.shape))
    return [
      x.numpy() for x in (loss, combine, dispatch, tape.gradient(total, logits))
    ]


def _our_gates(fn):
  def total(logits):
    gating = fn(logits)
    weighted = jnp.sum(gating.combine * _weights(gating.combine.shape))
    return gating.aux_loss + weighted, gating

  gradient, gating = jax.grad(total, has_aux=True)(LOGITS)
  return gating.aux_loss, gating.combine, gating.dispatch, gradient


def _weights(shape) -> np.ndarray:
  shape = tuple(map(int, shape))
  return np.random.default_rng(7).normal(size=shape).astype(np.float32)


def _close(ours, lingvos):
  for name, x, y in zip(
    ('loss', 'combine', 'dispatch', 'gradient'), ours, lingvos, strict=True
  ):
    tolerance = 1e-4 if name == 'gradient' else 1e-5
    parity.assert_close(x, y, tolerance, name)


@pytest.mark.parametrize(
  ('capacity', 'factor', 'legacy', 'paddings'),
  [
    (2, None, True, PADDINGS),
    (2, None, False, PADDINGS),
    (0, 2.0, True, None),
    (0, 2.0, False, None),
    (3, 1.0, True, PADDINGS),
    (0, 0.1, False, PADDINGS),
  ],
)
def test_gates_of_the_two_best_experts(capacity, factor, legacy, paddings):
  lingvos = _lingvo_gates(
    lambda logits: _layers().Top2GatingOnLogits(
      None,
      paddings,
      logits,
      num_devices=1,
      experts_dim=E,
      expert_capacity_dim=capacity,
      fprop_dtype=logits.dtype,
      use_xla_sharding=False,
      legacy_mtf_behavior=legacy,
      capacity_factor=factor,
    )
  )
  size = expert_gating.expert_capacity(
    LOGITS.shape[1], E, capacity_dim=capacity, capacity_factor=factor
  )
  ours = _our_gates(
    lambda logits: expert_gating.top2_gating(
      logits, paddings, capacity=size, legacy_mtf_behavior=legacy
    )
  )
  _close(ours, lingvos)


@pytest.mark.parametrize('policy', ['random', 'sampling'])
def test_second_experts_are_drawn_as_often_as_lingvo_draws_them(policy):
  logits = np.log([0.5, 0.3, 0.2]).astype(np.float32)
  logits = np.broadcast_to(logits, [400, 20, 3])
  fields = dict(second_expert_policy=policy, second_expert_threshold=0.6)
  tf = lingvo_runtime.module('tensorflow')
  with lingvo_runtime.cluster():
    tf.random.set_seed(1)
    _, combine, _ = _layers().Top2GatingOnLogits(
      None,
      None,
      tf.constant(logits),
      num_devices=1,
      experts_dim=3,
      expert_capacity_dim=20,
      fprop_dtype=tf.float32,
      use_xla_sharding=False,
      **fields,
    )
  gating = expert_gating.top2_gating(
    logits, None, capacity=20, key=jax.random.key(0), **fields
  )
  ours, lingvos = (
    np.asarray(c).sum(-1).mean((0, 1)) for c in (gating.combine, combine)
  )
  np.testing.assert_allclose(ours, lingvos, atol=0.01)


@pytest.mark.parametrize('tokens', [16, 14])
def test_gates_of_experts_that_choose(tokens):
  lingvos = _lingvo_gates(
    lambda logits: _layers().TokenShufflingOnlogits(
      None, logits[:, :tokens], E, logits.dtype, use_xla_sharding=False
    )
  )

  def ours(logits):
    gate, picked = expert_gating.expert_choice(
      logits[:, :tokens], capacity_factor=float(E)
    )
    return expert_gating.Gating(gate, picked, jnp.zeros([]), {})

  # Lingvo leaves the order of an expert's slots open.
  got, want = (
    np.einsum('gec,gecs->gse', np.asarray(gate), np.asarray(picked))
    for _, gate, picked, _ in (_our_gates(ours), lingvos)
  )
  parity.assert_close(got, want, 1e-5, 'gates by token')


@pytest.mark.parametrize(
  ('capacity', 'paddings'), [(3, None), (3, PADDINGS), (12, PADDINGS)]
)
def test_gates_of_experts_that_choose_no_padding(capacity, paddings):
  lingvos = _lingvo_gates(
    lambda logits: _layers().TokenShufflingOnlogitsV2(
      logits,
      paddings,
      1,
      E,
      capacity,
      logits.dtype,
      use_xla_sharding=False,
      mask_dtype='int32',
    )
  )
  ours = _our_gates(
    lambda logits: expert_gating.expert_choice_v2(
      logits, paddings, capacity=capacity
    )
  )
  _close(ours, lingvos)


def _builder(**fields):
  module = lingvo_runtime.module('lingvo.core.gshard_builder')
  return module.DenseBuilder.Params().Set(
    **{
      **dict(
        model_dim=D,
        moe_hidden_dim=8,
        e_dim=E,
        c_dim=0,
        capacity_factor=2.0,
        num_groups=G,
      ),
      **fields,
    }
  )


def _mixture(params, is_gated=False):
  """Returns the mixture that is translated, and what the translation said."""
  report = Report()
  builder = registry.translate(ParamsView(params.Copy(), 'builder', report))
  mixture = gshard_moe.mixture(builder, is_gated=is_gated, loss_weight=1.0)
  return mixture, report


def _check(params, is_gated=False, do_eval=False):
  """Holds a mixture against Lingvo's, in its output, loss and gradients."""
  builder = params.Instantiate()
  graph = (builder.MoEGated if is_gated else builder.MoE)('moe')
  mixture, report = _mixture(params, is_gated)
  assert not report.issues
  config = mixture.config.set(
    input_dims=D,
    ln_tpl=norm_layers.IdentityNorm.config(),
    add_skip_connection=False,
  )

  def fprop(layer, theta, x, segment_ids):
    y, aux_loss = layer.FProp(theta, x, segment_ids, segment_ids)
    return {'y': y, 'aux_loss': aux_loss}

  def call(layer, x, segment_ids):
    paddings = (segment_ids == 0).astype(jnp.float32)
    y, collections = layer.apply(
      layer.variables, x, paddings, mutable=[base_layer.AUX_LOSS]
    )
    [aux_loss] = collections[base_layer.AUX_LOSS].values()
    return {'y': y, 'aux_loss': aux_loss.value}

  inputs = [X, SEGMENT_IDS]
  parity.check_pair(
    graph,
    config,
    mixture.variables,
    inputs,
    fprop=fprop,
    call=lambda bound, *args: call(bound, *args),
    do_eval=do_eval,
  )


@pytest.mark.parametrize(
  ('fields', 'is_gated'),
  [
    (dict(), False),
    (dict(), True),
    (dict(c_dim=2, capacity_factor=None, legacy_mtf_behavior=False), True),
    (dict(moe_activation='GELU_APPROXIMATE', num_groups=1), False),
    (dict(model_dim_reshape_segments=2), True),
    (dict(gating_func='token_shuffle'), False),
    (dict(gating_func='token_shuffle_v2', mask_dtype='int32'), False),
    (dict(gating_func='token_shuffle_v2', mask_dtype='int32'), True),
  ],
)
def test_a_mixture(fields, is_gated):
  _check(_builder(**fields), is_gated)


@pytest.mark.parametrize('is_gated', [False, True])
def test_a_mixture_at_evaluation(is_gated):
  """Where groups are the rows, as they are for Lingvo on a CPU."""
  _check(_builder(num_groups=B), is_gated, do_eval=True)


def test_first_values_are_drawn_as_lingvo_draws_them():
  params = _builder(model_dim=48, moe_hidden_dim=96, e_dim=16)
  mixture, _ = _mixture(params)
  x = np.zeros([1, G, 48], np.float32)
  ours = base_layer.unbox(
    mixture.config.set(input_dims=48)
    .Instantiate()
    .init({base_layer.PARAMS: jax.random.key(0)}, x)
  )[base_layer.PARAMS]
  with lingvo_runtime.cluster():
    graph = params.Instantiate().MoE('moe').Instantiate()
  theirs = dict(graph.vars.FlattenItems())
  for variable in mixture.variables:
    (path,) = variable.theta
    want = theirs[path].numpy()
    found = np.asarray(ours[variable.jax])
    assert found.shape == want.shape
    for moment in (np.std, np.max, np.min):
      np.testing.assert_allclose(moment(found), moment(want), rtol=0.05)
    np.testing.assert_allclose(found.mean(), want.mean(), atol=0.01)
