"""Stacks some of whose layers have a mixture of experts.

Shapes: B batch, T time, D model dims.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import base_layer, errors
from pax_compat.base_layer import AUX_LOSS, PARAMS, SUMMARIES
from pax_compat.configs import config_text
from pax_compat.layer_core.losses import aux_losses
from pax_compat.layers.transformer_models import glam
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
  StackedTransformerRepeated,
)
from pax_compat.layers.transformers.transformer_moe import (
  TransformerFeedForwardMoe,
)
from pax_compat.nested_map import NestedMap
from tests.pax_compat.layers import numpy_transformer
from tests.pax_compat.layers.step_by_step import decode
from tests.pax_compat.trainer import tiny

B, T, D = 2, 6, 4
X = np.random.default_rng(0).normal(size=(B, T, D)).astype(np.float32)
PADDINGS = (np.arange(T) >= np.array([[T], [4]])).astype(np.float32)
REMAT = dict(remat=True, checkpoint_policy='save_nothing')


def _stack(num_layers=4, moe_layers=(0, 2), **fields):
  return StackedTransformer.config(
    **{
      **dict(
        model_dims=D,
        num_layers=num_layers,
        hidden_dims=8,
        num_heads=2,
        moe_layers=moe_layers,
        num_experts=3,
      ),
      **fields,
    }
  )


def _shapes(config):
  layer = config.Instantiate()
  weights = numpy_transformer.random_weights(layer, X)
  return {
    i: jax.tree.map(np.shape, weights[f'x_layers_{i}']['ff_layer'])
    for i in range(len(weights))
  }


def test_which_layers_have_experts():
  config = _stack()
  config.moe_layer_tpl.hidden_dims = 6
  shapes = _shapes(config)
  for i in (0, 2):
    assert shapes[i]['wi_0'] == (3, D, 6)
    assert shapes[i]['gate'] == (D, 3)
  for i in (1, 3):
    assert shapes[i]['ffn_layer1']['linear']['w'] == (D, 8)


def test_experts_have_inner_layers_like_the_others():
  assert _shapes(_stack(1, [0]))[0]['wi_0'] == (3, D, 8)


def test_fields_of_the_stack_reach_the_experts():
  def mixed(**fields):
    layer = _stack(1, [0], **fields).Instantiate()
    weights = numpy_transformer.random_weights(layer, X)
    apply = jax.jit(lambda w: layer.apply({PARAMS: w}, X, mutable=[SUMMARIES]))
    _, updates = apply(weights)
    summaries = (
      updates.get(SUMMARIES, {}).get('x_layers_0', {}).get('ff_layer', {})
    )
    return {k: float(v.value) for k, v in summaries.items()}

  tight = mixed(unadjusted_expert_capacity_factor=0.1)
  assert tight['over_capacity_2_ratio'] > 0
  # Each of four groups has as many slots as the one had.
  groups = dict(num_groups=4, unadjusted_expert_capacity_factor=0.1)
  assert mixed(**groups)['over_capacity_2_ratio'] == 0
  assert mixed(min_group_size=B * T, **groups) == tight
  assert 'avg_expert_per_token' in mixed(gating_func='expert_choice_v2')


def test_what_the_stack_and_its_template_disagree_about():
  tpl = TransformerFeedForwardMoe.config(num_experts=5)
  with pytest.raises(errors.UserError, match='moe_layer_tpl.num_experts is 5'):
    _shapes(_stack(moe_layer_tpl=tpl))


def test_experts_are_needed():
  with pytest.raises(errors.UserError, match='num_experts is required'):
    _shapes(_stack(num_experts=None))


def test_a_layer_that_is_not_there_has_no_effect(caplog):
  shapes = _shapes(_stack(moe_layers=[0, 4]))
  assert 'moe_layers has 4; layers are 0 to 3' in caplog.text
  assert shapes == _shapes(_stack(moe_layers=[0]))


def _repeated(**fields):
  return StackedTransformerRepeated.config(
    block=_stack(2, [0], **fields), x_times=2
  )


def _stacked(weights):
  """Returns the weights of a repeated stack, from those of a plain one."""
  block = {
    f'x_layers_{j}': jax.tree.map(
      lambda *each: np.stack(each),
      *(weights[f'x_layers_{2 * i + j}'] for i in range(2)),
    )
    for j in range(2)
  }
  return {'repeat': {'sub': block}}


def _total(layer, weights):
  """Returns the auxiliary loss, and the gradient by it and the output."""

  def loss(weights):
    y, updates = layer.apply({PARAMS: weights}, X, PADDINGS, mutable=[AUX_LOSS])
    aux_loss = sum(map(jnp.sum, jax.tree.leaves(updates[AUX_LOSS])))
    return jnp.sum(y**2) + 10 * aux_loss, aux_loss

  (_, aux_loss), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(
    weights
  )
  return aux_loss, jax.device_get(gradients)


def test_the_loss_comes_through_repeats_and_remat():
  plain = _stack().Instantiate()
  weights = numpy_transformer.random_weights(plain, X)
  want_loss, want = _total(plain, weights)
  repeated = _repeated(**REMAT).Instantiate()
  loss, gradients = _total(repeated, _stacked(weights))
  np.testing.assert_allclose(loss, want_loss, rtol=1e-5)
  assert want_loss > 1  # of two layers, which have about 1 each
  want = _stacked(want)
  scale = max(np.abs(g).max() for g in jax.tree.leaves(want))
  jax.tree.map(
    lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5 * scale),
    gradients,
    want,
  )


def test_the_loss_is_part_of_what_a_task_minimises():
  task = tiny.task()
  lm = task.model.lm_tpl
  block = _stack(2, [0], model_dims=lm.model_dims, **REMAT)
  lm.stacked_transformer_tpl = StackedTransformerRepeated.config(
    block=block, x_times=2
  )
  made = tiny.make_program(task)
  state = made.init_state(tiny.batch())

  @jax.jit
  def forward(variables, data):
    total, outputs, *_ = made.forward(variables, data, jax.random.key(0))
    return total, outputs.weighted

  total, metrics = forward(state.mdl_vars, made.put(tiny.batch()))
  values = {name: value for name, (value, _) in metrics.items()}
  assert values['aux_loss'] > 1  # of two layers, which have about 1 each
  np.testing.assert_allclose(
    total, values['avg_xent'] + values['aux_loss'], rtol=1e-6
  )
  np.testing.assert_array_equal(values['loss'], total)  # It is reported, too.


def test_decoding_with_slots_for_all_is_the_whole_step_by_step():
  config = _stack(
    2, [1], mask_self_attention=True, unadjusted_expert_capacity_factor=6.0
  )
  layer = config.Instantiate()
  weights = numpy_transformer.random_weights(layer, X)
  want = jax.jit(layer.apply)({PARAMS: weights}, X)
  y = decode(layer, weights, X, [1] * T, B, T)
  np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


def test_packed_examples_are_sentences():
  config = _stack(
    1, [0], packed_input=True, unadjusted_expert_capacity_factor=6.0
  )
  config.moe_layer_tpl.moe_gating_embedding_level = 'sentence'
  layer = config.Instantiate()
  given = dict(segment_ids=np.array([[1, 1, 1, 2, 2, 2], [1, 1, 2, 2, 3, 3]]))
  weights = {PARAMS: numpy_transformer.random_weights(layer, X, **given)}
  apply = jax.jit(lambda x: layer.apply(weights, x, **given))
  other = X.copy()
  other[0, 3:] = -2 * other[0, 3:] + 1  # of another example
  np.testing.assert_allclose(apply(other)[0, :3], apply(X)[0, :3], atol=1e-5)


def test_without_experts_the_text_of_a_stack_says_nothing_of_them():
  text = config_text.to_text(_stack(moe_layers=(), num_experts=None))
  fields = {'moe_layers', 'num_experts'}
  set_fields = {line.split(' ')[0].split('.')[0] for line in text.splitlines()}
  assert 'moe_layer_tpl' not in set_fields
  assert fields <= set_fields  # they were set
  assert 'num_groups' not in set_fields
  config = _stack()
  config.moe_layer_tpl.hidden_dims = 6
  assert 'moe_layer_tpl.hidden_dims = 6' in config_text.to_text(config)


def split_task():
  """Returns a task with experts, split over a mesh as usual."""
  task = tiny.task()
  lm = task.model.lm_tpl
  lm.stacked_transformer_tpl = _stack(
    1, [0], num_experts=4, num_groups=4, model_dims=lm.model_dims
  )
  axes = dict(ici_mesh_shape=[1, 4, 2], mesh_axis_names=tiny.MESH_AXES)
  task.model.set(**axes)
  replica, data, mdl = tiny.MESH_AXES
  lm.cls.set_sharding_params_v1(
    lm,
    replica_axis=replica,
    data_axis=data,
    mdl_axis=mdl,
    training_optimized=True,
    **axes,
  )
  return task


def test_how_experts_are_split_as_usual():
  stack = split_task().model.lm_tpl.stacked_transformer_tpl
  experts = stack.moe_layer_tpl
  weights = experts.weight_split_dims_mapping
  assert weights.emh == ['data', None, 'mdl']
  assert weights.ehm == ['data', 'mdl', None]
  split = experts.activation_split_dims_mapping
  assert split.egch == split.egcm == ['data', None, None, 'mdl']
  assert split.gsec == ['data', None, None, None]
  assert split.gsm == ['data', None, 'mdl']


def test_weights_of_experts_are_split_and_stacked():
  sharding = TransformerFeedForwardMoe.WeightSharding.config(
    me=[None, None], emh=['data', None, 'mdl'], ehm=['data', 'mdl', None]
  )
  tpl = TransformerFeedForwardMoe.config(weight_split_dims_mapping=sharding)
  layer = _repeated(moe_layer_tpl=tpl).Instantiate()
  boxed = jax.eval_shape(
    lambda: layer.init_boxed({PARAMS: jax.random.key(0)}, X)
  )[PARAMS]['repeat']['sub']['x_layers_0']['ff_layer']
  meta = boxed['wi_0'].meta
  assert meta.tensor_split_dims_mapping == (None, 'data', None, 'mdl')
  assert meta.repeat_prefix == (2,)
  assert base_layer.unbox(boxed)['wo_0'].shape == (2, 3, 8, D)


def test_a_model_adds_its_auxiliary_losses():
  lm = glam.GlamUniTransformerLmHParams(
    vocab_size=8,
    model_dim=4,
    ff_dim=8,
    attention_num_heads=2,
    attention_key_value_dim=2,
    num_transformer_layers=4,
    moe=True,
    e_dim=2,
    c_dim=3,
  ).Instantiate()
  ids, paddings = np.array([[1, 2, 3]]), np.zeros([1, 3], np.float32)
  labels = NestedMap(class_ids=ids, class_weights=1 - paddings)

  def call(**given):
    return lm.apply(weights, ids, paddings, labels, ids * 0 + 1, **given)

  with base_layer.eval_mode():
    init = jax.jit(lambda key: lm.init(key, ids, paddings, labels, ids * 0 + 1))
    weights = {PARAMS: base_layer.unbox(init(jax.random.key(0)))[PARAMS]}
    plain = jax.jit(call)()
    output, updates = jax.jit(lambda: call(mutable=[AUX_LOSS]))()
  losses = jax.tree.leaves(updates[AUX_LOSS], is_leaf=aux_losses.is_aux_loss)
  values, weights = zip(*((x.value, x.weight) for x in losses), strict=True)
  np.testing.assert_allclose(output.aux_loss, sum(map(jnp.sum, values)))
  assert output.aux_loss_weight == sum(map(jnp.sum, weights)) == 3
  assert output.aux_loss > 0 == plain.aux_loss == plain.aux_loss_weight
  np.testing.assert_allclose(
    output.total_loss, plain.total_loss + output.aux_loss, rtol=1e-6
  )
