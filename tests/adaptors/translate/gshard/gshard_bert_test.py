"""The stock encoders of `lm.wiki_bert` at reduced size, in Lingvo and here."""

import jax
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.params import shrinking
from pax_compat import base_layer, errors, learners
from pax_compat.layer_core.sharding import partition_spec
from pax_compat.layers.models.masked_lm import MaskedLmDataAugmenter
from pax_compat.nested_map import NestedMap
from tests.adaptors import small_experiments
from tests.adaptors.translate import task_parity, tiny_task

NAMES = [
  'MLPerfTrainBertDense2B',
  'MLPerfBertDense1T',
  'MLPerfBertDense1TWider',
  'MLPerfBertDense175B',
  'MLPerfBertDense500B',
  'MLPerfBertDense500B2K',
  'MLPerfBertDense13B32x32',
]
# In small, the others are one of these but for sizes.
_KINDS = {
  'relative positions': 'MLPerfBertDense1T',
  'positions': 'MLPerfBertDense175B',
  'positions and smoothing': 'MLPerfBertDense13B32x32',
}
_STEPS = 20


def _params(name):
  return small_experiments.task_params(f'lm.wiki_bert.{name}')


@pytest.mark.parametrize('name', _KINDS.values(), ids=_KINDS)
def test_against_lingvo(name):
  params = _params(name)
  theirs = task_parity.check(
    params,
    [small_experiments.batch(params, seed=seed) for seed in range(_STEPS)],
  )
  assert {'acc1', 'mean_xent', 'num_masked_tokens'} <= set(theirs.eval_metrics)
  for path, value in theirs.last.items():
    assert np.any(value != theirs.first[path]), path


def test_what_no_stock_encoder_sets():
  params = _params(_KINDS['relative positions']).Set(
    num_transformer_layers=1,
    use_repeat_layer=False,
    gated_ffn_activation=None,
    activation='gelu',
    loss_denominator=11,
    label_smoothing=0.2,
    z_loss=0.02,
    logits_abs_max=0.9,
  )
  params.builder.Set(
    attention_extra_logit=0.3,
    attention_combine_dims=False,
    atten_logit_cap=0.1,
    relative_attention_use_universal_1d_position=False,
    scale_input_embedding_by_dim=True,
    ff_use_bias=True,
    # Lingvo's biases need it so.
    model_dim_reshape_segments=None,
  )
  batch = small_experiments.batch(params)
  # Two examples in each row, whose positions begin anew.
  half = batch['ids'].shape[1] // 2
  batch['segment_ids'][:, half:] *= 2
  # As in the stock input.
  batch['segment_ids'] = batch['segment_ids'].astype(np.float32)
  batch['segment_pos'][:, half:] %= half
  batch['paddings'] = (np.arange(2 * half) % 5 == 4) * np.ones_like(
    batch['masked_pos']
  )
  task_parity.check_evaluation(params, batch)


@pytest.mark.parametrize('name', NAMES)
def test_every_name_translates_in_small(name):
  translated = tiny_task.translate(_params(name))
  model = translated.config.model
  assert model.mlm_augmenter_tpl.mask_token_id == 103
  # With one device there is no mesh.
  assert model.ici_mesh_shape is None


def _number_of_weights(params):
  """Returns how many weights a task of gated feed-forwards has in Lingvo."""
  b = params.builder
  dims, inner, per_head = b.model_dim, b.ff_dim, b.attention_key_value_dim
  heads = b.attention_num_heads
  # Queries and outputs have all heads, keys and values one.
  layer = 3 * dims * inner + 2 * dims * (heads + 1) * per_head + 2 * dims
  vectors = params.vocab_size
  if params.positional_embedding:
    vectors += params.max_length
  else:
    layer += heads * b.relative_attention_num_buckets
  return params.num_transformer_layers * layer + (vectors + 1) * dims


@pytest.mark.parametrize('name', NAMES)
def test_full_size_from_shapes_alone(name):
  """Every array is split over the devices that Lingvo has for it."""
  params = small_experiments.find(f'lm.wiki_bert.{name}').Task()
  translated = tiny_task.translate(params)
  model = translated.config.model
  assert list(model.ici_mesh_shape) == params.builder.device_mesh_shape
  mesh = jax.sharding.AbstractMesh(
    tuple(model.ici_mesh_shape),
    tuple(model.mesh_axis_names),
    axis_types=(jax.sharding.AxisType.Auto,) * 2,
  )
  shape = (params.batch_size, params.sequence_length)
  batch = NestedMap(
    {
      field: jax.ShapeDtypeStruct(shape, dtype)
      for field, dtype in (
        ('ids', np.int32),
        ('masked_ids', np.int32),
        ('masked_pos', np.float32),
        ('segment_ids', np.int32),
        ('segment_pos', np.int32),
      )
    }
  )
  layer = model.Instantiate()
  with jax.sharding.use_abstract_mesh(mesh):
    boxed = jax.eval_shape(layer.init_boxed, jax.random.key(0), batch)
  weights = learners.by_path(
    boxed[base_layer.PARAMS], is_leaf=base_layer.is_boxed
  )
  assert {v.jax for v in translated.variables} == set(weights)
  numbers = {path: np.prod(w.value.shape) for path, w in weights.items()}
  assert sum(map(int, numbers.values())) == _number_of_weights(params)
  for path, weight in weights.items():
    # Norms, and biases of distances, are whole on each device.
    if numbers[path] > 1e8:
      assert _devices(mesh, weight.meta) == mesh.size, path


def _devices(mesh, meta):
  """Returns over how many devices a weight is split."""
  spec = partition_spec(
    meta.tensor_split_dims_mapping, meta.shape, mesh.axis_names, where='test'
  )
  axes = [a for entry in spec if entry for a in np.atleast_1d(entry)]
  return np.prod([mesh.shape[a] for a in axes])


def _first_weights(params):
  """Returns the weights that Lingvo's task starts with, by theta path."""
  with small_experiments.graph_of_lingvo() as tf, tf.Session() as session:
    tf.random.set_seed(1)
    variables = dict(params.Instantiate().vars.FlattenItems())
    session.run(tf.global_variables_initializer())
    return session.run(variables)


def test_first_weights():
  """Their moments, at a size that shows deviations of a few percent."""
  sizes = shrinking.Sizes(width=512, vocab_size=256, sequence_length=64)
  params = small_experiments.task_params(
    f'lm.wiki_bert.{_KINDS["positions"]}', sizes
  )
  theirs = _first_weights(params)
  translated = tiny_task.translate(params)
  layer = translated.config.model.Instantiate()
  batch = NestedMap(small_experiments.batch(params, sizes=sizes))
  boxed = jax.jit(layer.init_boxed)(jax.random.key(0), batch)
  ours = translated.variables.to_lingvo(
    learners.by_path(base_layer.unbox(boxed)[base_layer.PARAMS])
  )
  assert set(ours) == set(theirs)
  for path, wanted in theirs.items():
    found, size = ours[path], wanted.size
    assert found.shape == wanted.shape
    if np.ptp(wanted) == 0:
      np.testing.assert_array_equal(found, wanted)
      continue
    # Of a deviation's estimate, twice: both sides are draws.
    error = 4 * size**-0.5
    np.testing.assert_allclose(
      found.std(), wanted.std(), rtol=error, err_msg=path
    )
    assert abs(found.mean() - wanted.mean()) < 6 * wanted.std() * size**-0.5
    # What is uniform has no tails, what is Gaussian has.
    tails = [np.abs(w).max() / w.std() for w in (found, wanted)]
    assert (tails[0] > 2) == (tails[1] > 2), f'{path}: {tails}'
  for path in theirs:
    other = path.replace('iter_00000', 'iter_00001')
    if other != path and np.ptp(theirs[path]):
      assert not np.array_equal(ours[path], ours[other])


def _base():
  return _params(_KINDS['positions'])


def _changed(part=None, **fields):
  params = _base()
  (params.Get(part) if part else params).Set(**fields)
  return params


@pytest.mark.parametrize(
  ('params', 'message'),
  [
    (lambda: _changed(mlm_loss_weight=0.0), 'task.mlm_loss_weight '),
    (
      lambda: _changed('masked_lm', mlm_duration=5),
      r'task.masked_lm.mlm_duration .*MaskedLmDataAugmenter.*5 is not',
    ),
    (
      lambda: _changed(gated_ffn_activation=lambda x: x),
      'task.gated_ffn_activation .* is not translated, only',
    ),
    (lambda: _changed(builder=None), r'task.builder .*it is not set'),
  ],
)
def test_what_is_not_translated(params, message):
  with pytest.raises(errors.UserError, match=message):
    tiny_task.translate(params())


def test_a_class_that_computes_something_else():
  bert = lingvo_runtime.module('lingvo.core.gshard_builder').BertTransformer

  class Mine(bert):
    def ComputeLoss(self, theta, predictions, input_batch):
      return super().ComputeLoss(theta, predictions, input_batch)

  params = _base()
  mine = Mine.Params()
  for name, value in params.IterParams():
    if name != 'cls':
      mine.Set(**{name: value})
  with pytest.raises(errors.UserError, match='overrides ComputeLoss'):
    tiny_task.translate(mine)


def test_how_tokens_are_masked():
  """If a batch has none; the fields of the task take precedence."""
  params = _base()
  params.masked_lm.Set(
    vocab_size=7, mask_token_id=5, mask_prob=0.5, random_avoid_ids=[0]
  )
  params.gated_ffn_activation = lingvo_runtime.module('tensorflow').nn.silu
  model = tiny_task.translate(params).config.model
  augmenter = model.mlm_augmenter_tpl
  assert augmenter.cls is MaskedLmDataAugmenter and model.mask_token_id is None
  assert augmenter.vocab_size == params.vocab_size
  assert augmenter.mask_token_id == params.mask_token_id
  probs = augmenter.mask_prob, augmenter.random_prob, augmenter.same_prob
  assert probs == (0.5, 0.015, 0.015) and augmenter.random_avoid_ids == [0]
