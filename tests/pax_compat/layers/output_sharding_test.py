"""How what layers compute is split over a mesh.

Shapes: B batch, T time, H height, W width, D features.
"""

import json

import jax
import jax.numpy as jnp
import pytest

from pax_compat import base_layer, errors, layers
from tests.pax_compat.launching import run_on_eight_devices

B, T, D = 2, 4, 8
SEQUENCE = jnp.ones([B, T, D])
IMAGE = jnp.ones([B, T, T, D])


def _mesh():
  return jax.make_mesh(
    (1,), ('data',), axis_types=(jax.sharding.AxisType.Auto,)
  )


@pytest.mark.parametrize(
  ('config', 'inputs'),
  [
    (layers.ReLU.config(), [SEQUENCE]),
    (layers.Bias.config(dims=D), [SEQUENCE]),
    (layers.StackingOverTime.config(stride=1), [SEQUENCE]),
    (layers.Dropout.config(keep_prob=0.5), [SEQUENCE]),
    (layers.StochasticResidual.config(), [SEQUENCE, SEQUENCE]),
    (layers.IdentityNorm.config(), [SEQUENCE]),
    (layers.LayerNorm.config(dim=D), [SEQUENCE]),
    (layers.RmsNorm.config(dim=D), [SEQUENCE]),
    (layers.RmsNormNoScale.config(dim=D), [SEQUENCE]),
    (layers.BatchNorm.config(dim=D), [SEQUENCE]),
    (layers.GroupNorm.config(dim=D, num_groups=2, input_rank=3), [SEQUENCE]),
    (layers.WeightNormL2.config(dim=D), [SEQUENCE]),
    (layers.SpectralNorm.config(dim=D), [SEQUENCE]),
    (layers.Conv1D.config(filter_shape=(1, D, D)), [SEQUENCE]),
    (layers.Conv2D.config(filter_shape=(1, 1, D, D)), [IMAGE]),
    (layers.ConvBNAct.config(filter_shape=(1, 1, D, D)), [IMAGE]),
    (layers.DepthwiseConv1D.config(filter_shape=(1, D, 1)), [SEQUENCE]),
    (layers.CausalDepthwiseConv1D.config(hidden_dims=D), [SEQUENCE]),
    (
      layers.Pooling.config(window_shape=(1, 1), window_stride=(1, 1)),
      [IMAGE],
    ),
    (
      layers.LightConv1D.config(input_dims=D, kernel_size=2),
      [SEQUENCE, jnp.zeros([B, T])],
    ),
    (layers.Pooling1D.config(window=2), [SEQUENCE]),
    (layers.GlobalPooling.config(pooling_dims=[]), [SEQUENCE]),
  ],
  ids=lambda value: getattr(getattr(value, 'cls', None), '__name__', None),
)
def test_the_mapping_of_the_output_is_never_ignored(config, inputs):
  split = [None] * (inputs[0].ndim - 1) + ['nowhere']
  mapping = config.cls.ActivationSharding.config(out=split)
  layer = config.set(activation_split_dims_mapping=mapping).Instantiate()
  rngs = {
    base_layer.PARAMS: jax.random.key(0),
    base_layer.RANDOM: jax.random.key(1),
  }
  layer.init(rngs, *inputs)  # without a mesh, mappings have no meaning
  with jax.set_mesh(_mesh()):
    with pytest.raises(
      errors.UserError, match="'nowhere', which is not an axis of the mesh"
    ):
      layer.init(rngs, *inputs)


_EMBEDDING = layers.Embedding.config(num_classes=9, input_dims=D)
_TRAINABLE = layers.TrainablePositionalEmbedding.config(
  embedding_dims=D, max_seq_length=T
)


@pytest.mark.parametrize(
  ('config', 'argument', 'name'),
  [
    (_EMBEDDING, jnp.ones([B, T], int), 'out'),
    (_EMBEDDING, jnp.ones([B, T], int), 'emb_out_split_dims_mapping'),
    (_TRAINABLE, T, 'out'),
    (_TRAINABLE, T, 'emb_out_split_dims_mapping'),
    (layers.PositionalEmbedding.config(embedding_dims=D), T, 'out'),
    (layers.PositionalEmbedding2D.config(embedding_dims=D, h=2, w=2), T, 'out'),
  ],
  ids=lambda value: getattr(getattr(value, 'cls', None), '__name__', None),
)
def test_the_mapping_of_vectors_is_never_ignored(config, argument, name):
  mapping = config.cls.ActivationSharding.config(
    **{name: [None, None, 'nowhere']}
  )
  layer = config.clone().set(activation_split_dims_mapping=mapping)
  with jax.set_mesh(_mesh()):
    with pytest.raises(
      errors.UserError, match="'nowhere', which is not an axis of the mesh"
    ):
      layer.Instantiate().init(jax.random.key(0), argument)


_ON_EIGHT_DEVICES = """
import json
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from pax_compat import base_layer, layers

out = layers.ConvBNActWithPadding.ActivationSharding.config(
  out=['data', None, None, 'mdl']
)
layer = layers.ConvBNActWithPadding.config(
  filter_shape=(3, 3, 2, 8),
  activation_split_dims_mapping=out,
  weight_split_dims_mapping=layers.Conv2D.WeightSharding.config(
    wt=[None, None, None, 'mdl']
  ),
).Instantiate()
rng = np.random.default_rng(0)
x = rng.normal(size=(4, 6, 5, 2)).astype(np.float32)
paddings = (np.arange(6) >= np.array([[6], [4], [3], [0]])).astype(np.float32)
boxed = layer.init(jax.random.key(0), x, paddings)
boxed = {k: boxed[k] for k in (base_layer.PARAMS, base_layer.NON_TRAINABLE)}

@jax.jit
def step(variables, x, paddings):
  def loss(params):
    (y, _), updates = layer.apply(
      {**variables, base_layer.PARAMS: params}, x, paddings,
      mutable=[base_layer.NON_TRAINABLE],
    )
    return jnp.sum(jnp.sin(y)), (y, updates)
  return jax.grad(loss, has_aux=True)(variables[base_layer.PARAMS])

one = step(base_layer.unbox(boxed), x, paddings)
mesh = jax.make_mesh((2, 4), ('data', 'mdl'), axis_types=(AxisType.Auto,) * 2)

def placed(box):
  mapping = box.meta.tensor_split_dims_mapping or ()
  return jax.device_put(box.value, NamedSharding(mesh, PartitionSpec(*mapping)))

with jax.set_mesh(mesh):
  variables = jax.tree.map(placed, boxed, is_leaf=base_layer.is_boxed)
  split = NamedSharding(mesh, PartitionSpec('data'))
  eight = step(
    variables, jax.device_put(x, split), jax.device_put(paddings, split)
  )
w = variables[base_layer.PARAMS]['w']
y = eight[1][0]
difference = jax.tree.map(
  lambda a, b: abs(np.asarray(a) - np.asarray(b)).max() / abs(a).max(),
  one, eight,
)
print(json.dumps({
  'w': w.sharding.shard_shape(w.shape),
  'y': y.sharding.shard_shape(y.shape),
  'difference': float(max(jax.tree.leaves(difference))),
}))
"""


def test_a_block_on_eight_devices_computes_what_one_does():
  result = json.loads(run_on_eight_devices(_ON_EIGHT_DEVICES))
  assert result['w'] == [3, 3, 2, 2]
  assert result['y'] == [2, 6, 5, 2]
  assert result['difference'] < 1e-5
