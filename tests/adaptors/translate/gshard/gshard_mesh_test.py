"""GShard's meshes and splits: stock models at full size, by shapes alone."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptors.translate.tasks import single as task_translation
from pax_compat import base_layer, errors, learners
from pax_compat.nested_map import NestedMap
from tests.adaptors import small_experiments

_PREFIX = 'lm.synthetic_packed_input.'
D, M = 'data', 'mdl'
# How weights are split, by the ends of their paths; others are not.
WEIGHTS = {
  'query/w': (D, M),
  'key/w': (D, M),
  'value/w': (D, M),
  'post/w': (M, D),
  'ffn_layer1/linear/w': (D, M),
  'ffn_layer1_gate/linear/w': (D, M),
  'ffn_layer2/linear/w': (M, D),
}
_NAMES = ('ids', 'labels', 'segment_ids', 'segment_pos')


def _params(name):
  """Returns Params of a stock experiment at full size."""
  experiment = small_experiments.find(_PREFIX + name)
  params = experiment.Task()
  params.input = experiment.Train()
  return params


def _weights(model, params):
  """Returns what each weight of a model is, by path, from shapes alone."""
  layer = model.Instantiate()
  shape = (params.input.batch_size, params.input.seq_len)
  tokens = jax.ShapeDtypeStruct(shape, jnp.int32)
  batch = NestedMap(tgt=NestedMap({name: tokens for name in _NAMES}))
  variables = jax.eval_shape(
    lambda batch: layer.init_boxed(
      {base_layer.PARAMS: jax.random.key(0)}, batch
    ),
    batch,
  )
  boxes = learners.by_path(
    variables[base_layer.PARAMS], is_leaf=base_layer.is_boxed
  )
  return {path: box.meta for path, box in boxes.items()}


def _split(weight, rank):
  """Returns the mesh axis of each of a weight's last dimensions."""
  mapping = weight.tensor_split_dims_mapping or [None] * len(weight.shape)
  axes = [x[0] if isinstance(x, tuple) else x for x in mapping]
  assert not any(axes[:-rank])
  return tuple(axes[-rank:])


@pytest.mark.parametrize(
  ('name', 'mesh', 'billions', 'table'),
  [
    ('DenseLm1T16x16', [16, 32], 1100.0, (None, M)),
    ('DenseLm175B8x8Decode2D', [8, 16], 174.4, (M, D)),
  ],
)
def test_full_size(name, mesh, billions, table):
  params = _params(name)
  translated = task_translation.translate_task(params, name)
  model = translated.config.model
  assert model.ici_mesh_shape == mesh and model.mesh_axis_names == [D, M]
  weights = _weights(model, params)
  count = sum(math.prod(weight.shape) for weight in weights.values())
  np.testing.assert_allclose(count / 1e9, billions, rtol=1e-3)
  assert set(weights) == {v.jax for v in translated.variables}
  tables = {'softmax/embedding/w': table, 'position_emb/emb_var': table}
  for path, weight in weights.items():
    found = [s for e, s in {**WEIGHTS, **tables}.items() if path.endswith(e)]
    if found:
      assert _split(weight, 2) == found[0], path
    else:
      assert weight.tensor_split_dims_mapping is None, path


def test_activations_at_full_size():
  params = _params('DenseLm175B8x8Decode2D')
  config = task_translation.translate_task(params, 'x').config
  lm = config.model.lm_tpl
  layer = lm.stacked_transformer_tpl.block.transformer_layer_params_tpl
  atten = layer.tr_atten_tpl.activation_split_dims_mapping
  assert (atten.blnh, atten.bld) == ([D, None, M, None], [None, None, D])
  ffn = layer.tr_fflayer_tpl.activation_split_dims_mapping
  assert (ffn.ffn0, ffn.ffn1) == ([None, None, M], [None, None, D])
  vocabulary = lm.softmax_tpl.activation_split_dims_mapping
  assert vocabulary.out == [None, None, M]
  assert vocabulary.emb_out_split_dims_mapping == [None, None, D]


def small(mesh_shape, **builder):
  """Returns Params of a small model with a mesh of a given shape."""
  params = small_experiments.task_params(_PREFIX + 'DenseLm8B2x2')
  params.builder.Set(
    device_mesh_shape=mesh_shape,
    device_mesh=np.arange(math.prod(mesh_shape)).reshape(mesh_shape),
  )
  params.builder.Set(**builder)
  return params


@pytest.mark.parametrize(
  ('shape', 'builder', 'message'),
  [
    ([2, 2, 2], {}, r'device_mesh_shape .*\[2, 2, 2\] has 3 axes; only 2'),
    ([2, 4], {'blm_split': [0, -1, 2]}, r'blm_split .* does not split 3 dim'),
    ([2, 4], {'qkv_split': [0, -1]}, r'qkv_split .* does not split 4 dim'),
    (
      [2, 4],
      {'device_mesh': np.arange(8)},
      r'\[2, 4\] is not the shape of device_mesh, \[8\]',
    ),
  ],
)
def test_meshes_that_are_refused(shape, builder, message):
  with pytest.raises(errors.UserError, match=message):
    task_translation.translate_task(small(shape, **builder), 'x')
