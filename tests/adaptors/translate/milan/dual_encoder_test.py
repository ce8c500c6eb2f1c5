"""Dual encoders of milan, translated, against Lingvo's, run for real.

Shapes: B batch, D dims.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.bridge import task as bridge_task
from adaptors.bridge.task import Kind
from pax_compat import errors
from pax_compat.layers.models import dual_encoder
from pax_compat.nested_map import NestedMap
from tests.adaptors.bridge.families import milan
from tests.adaptors.bridge.functional import hub_module
from tests.adaptors.translate import parity, task_parity, tiny_task

# A bias of keys adds the same to all logits.
_KEYS = '.source_proj_b'


@pytest.mark.exhaustive
def test_twenty_steps_of_two_texts():
  batches = [milan.batch(seed) for seed in range(20)]
  task_parity.check(
    milan.task_params(), batches, static_shapes=True, without_gradient=_KEYS
  )


@pytest.fixture(name='module')
def _module(tmp_path):
  """Returns the path of a module with a regularization loss."""
  hub_module.save(str(tmp_path / 'module'), decay=0.01)
  return str(tmp_path / 'module')


def _with_images(module):
  """Returns Params with a module of TensorFlow Hub in place of a tower."""
  encoders = lingvo_runtime.module('lingvo.tasks.milan.dual_encoder')
  hub_layers = lingvo_runtime.module('lingvo.tasks.milan.tf_hub_layers')
  params = milan.task_params()
  params.dual_encoder.encoder_configs['query'] = encoders.EncoderConfig().Set(
    input_features='image/encoded',
    id_feature='query_ids',
    encoder=hub_layers.ImageModuleV2.Params().Set(module_path=module),
    output_dim=3,
  )
  params.dual_encoder.regularization_loss_weight = 0.5
  return params


def _batch(seed):
  batch = milan.batch(seed)
  rows = len(batch['query_ids'])
  images = np.random.default_rng(seed).normal(size=[rows, 4, 4, 3])
  return {**batch, 'image/encoded': images.astype(np.float32)}


@pytest.mark.slow
def test_five_steps_with_a_module_of_images(module):
  params = _with_images(module)
  route = bridge_task.route(params, 'milan', 'auto')
  assert route.kind == Kind.PARTLY
  [issue] = route.issues
  assert issue.path == 'task.dual_encoder.encoder_configs[query].encoder'
  theirs = task_parity.check(
    params,
    [_batch(seed) for seed in range(5)],
    static_shapes=True,
    without_gradient=_KEYS,
    translate=bridge_task.bridge_parts,
  )
  assert 'loss_regularization' in theirs.eval_metrics
  moved = [k for k in theirs.first if '/' in k]
  assert len(moved) == 2
  for path in moved:
    assert np.all(theirs.last[path] != theirs.first[path])


def _labels_in_lingvo(batch, multi, modalities, items):
  """Returns Lingvo's labels, as a matrix."""
  tf = lingvo_runtime.module('tensorflow')
  labels = lingvo_runtime.module('lingvo.tasks.milan.labels')
  label = labels.ExamplePairLabeler(['image', 'text'])
  if multi:
    shapes = {k: tf.TensorShape([None, *v[1:]]) for k, v in items.items()}
    label = labels.MultiItemExampleWrapper(label, shapes)
  query, result = modalities
  found = label(
    labels.ExamplePairs.WithinBatch(
      {k: tf.constant(v) for k, v in batch.items()},
      query_modality=query,
      result_modality=result,
    )
  )
  return np.reshape(found, [np.prod(items[query]), np.prod(items[result])])


@pytest.mark.parametrize(
  ('multi', 'modalities'),
  [(False, 'ab'), (True, 'ba'), (True, 'bb')],
)
def test_labels_and_losses(multi, modalities):
  tf = lingvo_runtime.module('tensorflow')
  labels = lingvo_runtime.module('lingvo.tasks.milan.labels')
  batch = {
    'image': np.array([1, 2, 1, 3], np.int32),
    'text': np.array([5, 5, 6, 7], np.int32),
  }
  items = {'a': (4,), 'b': (4, 3) if multi else (4,)}
  wanted = _labels_in_lingvo(batch, multi, modalities, items)
  layer = dual_encoder.PairLabels.HParams(
    name='labels', ignore_if_equal=['image', 'text'], ignore_self=multi
  ).Instantiate()
  query, result = modalities
  found = layer.apply(
    {},
    NestedMap({k: jnp.asarray(v) for k, v in batch.items()}),
    items[query],
    items[result],
    is_same=query == result,
  )
  np.testing.assert_array_equal(found, wanted)
  scores = np.random.default_rng(0).normal(scale=9.0, size=wanted.shape)
  scores = scores.astype(np.float32)
  scores[0] += 1e4
  with tf.GradientTape() as tape:
    tape.watch(logits := tf.constant(scores))
    losses = labels.MultiLabelContrastiveLoss(tf.constant(wanted), logits)

  @jax.jit
  def with_gradient(scores):
    ours, pull = jax.vjp(
      lambda s: dual_encoder.contrastive_losses(found, s), scores
    )
    return ours, pull(jnp.ones_like(ours))[0]

  ours, gradient = with_gradient(scores)
  parity.assert_close(ours, losses.numpy(), 1e-6, 'losses')
  wanted = tape.gradient(losses, logits).numpy()
  parity.assert_close(gradient, wanted, 1e-5, 'gradient')


def test_a_label_function_that_is_refused():
  params = milan.task_params()
  params.dual_encoder.label_fn = lambda pairs: pairs.correspondences
  with pytest.raises(errors.UserError, match='label_fn .*<lambda> is not'):
    tiny_task.translate(params)
