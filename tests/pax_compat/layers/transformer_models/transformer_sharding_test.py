"""Which dimension of which tensor of a Transformer is split over which axis.

The letters of a tensor's dimensions are those of `transformer_sharding`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pax_compat import errors
from pax_compat.base_layer import PARAMS
from pax_compat.layers import embedding_softmax
from pax_compat.layers.attentions.grouped_query_attention import (
  GroupedQueryAttention,
)
from pax_compat.layers.attentions.multi_query_attention import (
  MultiQueryDotProductAttention,
)
from pax_compat.layers.embeddings import embedding_tables, positional_embeddings
from pax_compat.layers.softmaxes import full_softmax
from pax_compat.layers.transformer_models import transformer_sharding
from pax_compat.layers.transformer_models.transformer_encoder_decoder import (
  TransformerEncoderDecoder,
)
from pax_compat.layers.transformer_models.transformer_lm import TransformerLm
from pax_compat.layers.transformers.stacked_transformers import (
  StackedTransformer,
  StackedTransformerRepeated,
)
from pax_compat.layers.transformers.transformer_feed_forward import (
  TransformerFeedForward,
)
from pax_compat.layers.transformers.transformer_layers import Transformer
from tests.pax_compat.layers import naive_attention

B, L, D, F, N, V = 2, 3, 4, 12, 2, 8
IDS, PADDINGS = np.zeros([B, L], np.int32), np.zeros([B, L], np.float32)
AXES = ['replica', 'data', 'mdl']
MESH = naive_attention.abstract_mesh(replica=1, data=2, mdl=2)
CANONICAL = dict(
  replica_axis='replica',
  data_axis='data',
  mdl_axis='mdl',
  ici_mesh_shape=[1, 2, 2],
  mesh_axis_names=AXES,
)
BATCH = ('replica', 'data')


def _stack(repeated=False, **layer):
  stack = StackedTransformer.config(
    num_layers=1,
    hidden_dims=F,
    num_heads=N,
    transformer_layer_params_tpl=Transformer.config(**layer),
  )
  if not repeated:
    return stack
  return StackedTransformerRepeated.config(block=stack, x_times=2)


def _lm(repeated=False, layer=None, **fields):
  return TransformerLm.config(
    vocab_size=V,
    model_dims=D,
    stacked_transformer_tpl=_stack(repeated, **(layer or {})),
    **fields,
  )


def _canonical(config, training_optimized=True, **axes):
  return config.cls.set_sharding_params_v1(
    config, **CANONICAL, training_optimized=training_optimized, **axes
  )


def _weights(config, *inputs):
  """Returns how each weight is split, by its path without the stack's."""
  layer = config.Instantiate()
  weights = jax.eval_shape(
    lambda: layer.init_boxed({PARAMS: jax.random.key(0)}, *inputs)
  )[PARAMS]
  boxed = jax.tree_util.tree_leaves_with_path(
    weights, is_leaf=lambda x: hasattr(x, 'meta')
  )
  split = {}
  for path, box in boxed:
    mapping = box.meta.tensor_split_dims_mapping
    if mapping is not None:
      assert len(mapping) == len(box.value.shape)
      split['/'.join(key.key for key in path)] = list(mapping)
  return split


DNH, NH = ['data', 'mdl', None], ['mdl', None]
DF, FD, VD = ['data', 'mdl'], ['mdl', 'data'], ['mdl', 'data']
FEED_FORWARD = {
  'ff_layer/ffn_layer1/linear/w': DF,
  'ff_layer/ffn_layer1/bias/b': ['mdl'],
  'ff_layer/ffn_layer2/linear/w': FD,
  'ff_layer/ffn_layer2/bias/b': ['mdl'],  # As the outputs that it is added to.
}
SOFTMAX = {
  'softmax/logits_ffn/linear/w': VD[::-1],
  'softmax/logits_ffn/bias/b': ['mdl'],
}


def _attention(name='self_attention'):
  weights = {f'{name}/{part}/w': DNH for part in ('query', 'key', 'value')}
  biases = {f'{name}/{part}/b': NH for part in ('query', 'key', 'value')}
  post = {f'{name}/post/w': DNH, f'{name}/post/b': ['data']}
  return {**weights, **biases, **post}


def _under(path, weights, before=()):
  return {f'{path}/{k}': [*before, *v] for k, v in weights.items()}


LAYER = {**_attention(), **FEED_FORWARD}


@pytest.mark.parametrize('repeated', [False, True])
def test_weights_of_a_language_model(repeated):
  """What a repeated stack adds in front is not split."""
  path, before = 'transformer/x_layers_0', []
  if repeated:
    path, before = 'transformer/repeat/sub/x_layers_0', [None]
  assert _weights(_canonical(_lm(repeated)), IDS, PADDINGS) == {
    **_under(path, LAYER, before),
    **SOFTMAX,
  }


def test_each_layer_of_a_list_is_split():
  config = _lm()
  layers = [Transformer.config(num_heads=N, hidden_dims=F) for _ in range(2)]
  config.stacked_transformer_tpl = StackedTransformer.config(
    num_layers=2, transformer_layer_params_tpl=layers
  )
  layers[1].tr_fflayer_tpl = None
  layers[1].hidden_dims = None
  assert _weights(_canonical(config), IDS, PADDINGS) == {
    **_under('transformer/x_layers_0', LAYER),
    **_under('transformer/x_layers_1', _attention()),
    **SOFTMAX,
  }


def test_both_inner_projections_of_a_gated_feed_forward_are_split():
  tpl = TransformerFeedForward.config(use_gated_activation=True)
  config = _canonical(_lm(layer={'tr_fflayer_tpl': tpl}))
  split = _weights(config, IDS, PADDINGS)
  path = 'transformer/x_layers_0/ff_layer/ffn_layer1'
  assert split[f'{path}_gate/linear/w'] == split[f'{path}/linear/w'] == DF


@pytest.mark.parametrize('kv_heads', [1, 2])
@pytest.mark.parametrize(
  'cls', [MultiQueryDotProductAttention, GroupedQueryAttention]
)
def test_weights_of_heads_that_are_shared(cls, kv_heads):
  tpl = cls.config(num_kv_heads=kv_heads)
  config = _canonical(_lm(layer={'tr_atten_tpl': tpl, 'num_heads': 4}))
  config.stacked_transformer_tpl.num_heads = None
  split = _weights(config, IDS, PADDINGS)
  path = 'transformer/x_layers_0/self_attention'
  assert split[f'{path}/query/w'] == DNH
  assert split[f'{path}/key/w'] == (['data', None] if kv_heads == 1 else DNH)
  assert split[f'{path}/key/b'] == ([None] if kv_heads == 1 else NH)


@pytest.mark.parametrize(
  ('fields', 'want'),
  [
    (
      {'softmax_tpl': embedding_softmax.GShardSharedEmbeddingSoftmax.config()},
      {'softmax/embedding/w': VD},
    ),
    (
      {
        'softmax_tpl': full_softmax.FullSoftmax.config(),
        'separate_embedding_tpl': embedding_tables.Embedding.config(),
        'position_emb_tpl': (
          positional_embeddings.TrainablePositionalEmbedding.config(
            max_seq_length=L
          )
        ),
      },
      {
        **SOFTMAX,
        'embedding_lookup/emb_var': VD,
        'position_emb/emb_var': DF,
      },
    ),
  ],
)
def test_weights_of_vocabularies_and_positions(fields, want):
  split = _weights(_canonical(_lm(**fields)), IDS, PADDINGS)
  of_layers = {k: v for k, v in split.items() if k.startswith('transformer/')}
  assert of_layers == _under('transformer/x_layers_0', LAYER)
  assert {k: v for k, v in split.items() if k not in of_layers} == want


def test_weights_of_an_encoder_and_a_decoder():
  tables = {
    f'{side}_embedding_tpl': embedding_tables.Embedding.config(num_classes=V)
    for side in ('encoder', 'decoder')
  }
  # Cross attention has a separate template.
  cross = MultiQueryDotProductAttention.config()
  config = TransformerEncoderDecoder.config(
    model_dims=D,
    encoder_stacked_transformer_tpl=_stack(),
    decoder_stacked_transformer_tpl=_stack(cross_atten_tpl=cross),
    softmax_tpl=full_softmax.FullSoftmax.config(num_classes=V),
    **tables,
  )
  split = _weights(_canonical(config), IDS, PADDINGS, IDS, PADDINGS)
  path = 'decoder/x_layers_0/cross_attention'
  assert split.pop(f'{path}/key/w') == ['data', None]
  assert split == {
    **_under('encoder/x_layers_0', LAYER),
    **_under('decoder/x_layers_0', LAYER),
    **_under(
      'decoder/x_layers_0',
      {
        'cross_attention/query/w': DNH,
        'cross_attention/query/b': NH,
        'cross_attention/key/b': [None],
        'cross_attention/value/w': ['data', None],
        'cross_attention/value/b': [None],
        'cross_attention/post/w': DNH,
        'cross_attention/post/b': ['data'],
      },
    ),
    **SOFTMAX,
    'encoder_embedding_lookup/emb_var': VD,
    'decoder_embedding_lookup/emb_var': VD,
  }


def _activations(config):
  """Returns the pairs of a shape and its split that a model's pass has."""
  layer = config.Instantiate()
  weights = jax.eval_shape(
    lambda: layer.init_boxed({PARAMS: jax.random.key(0)}, IDS, PADDINGS)
  )
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape), weights)
  return set(
    naive_attention.splits(
      lambda ids: layer.apply(zeros, ids, PADDINGS).logits, MESH, IDS
    )
  )


@pytest.mark.parametrize('training_optimized', [False, True])
def test_activations(training_optimized):
  """Those between the layers are split over the model axis if so wanted."""
  last = 'mdl' if training_optimized else None
  assert _activations(_canonical(_lm(), training_optimized)) == {
    ((B, L, D), (BATCH, None, last)),
    ((B, L, N, D // N), (BATCH, None, 'mdl', None)),
    ((B, L, F), (BATCH, None, 'mdl')),
    ((B, L, V), (BATCH, None, 'mdl')),
  }


def test_tensors_are_split_one_by_one():
  config = TransformerLm.set_custom_sharding_params(
    _lm(),
    ici_mesh_shape=[1, 2, 2],
    mesh_axis_names=AXES,
    w_df=[None, 'mdl'],
    a_blv=['data', None, 'mdl'],
  )
  split = _weights(config, IDS, PADDINGS)
  assert split == {
    **_under(
      'transformer/x_layers_0',
      {
        'ff_layer/ffn_layer1/linear/w': [None, 'mdl'],
        'ff_layer/ffn_layer1/bias/b': ['mdl'],
        'ff_layer/ffn_layer2/linear/w': ['mdl', None],
        'ff_layer/ffn_layer2/bias/b': [None],
      },
    ),
    'softmax/logits_ffn/bias/b': ['mdl'],  # As the logits.
  }
  assert _activations(config) == {((B, L, V), ('data', None, 'mdl'))}


def test_the_mesh_is_that_of_the_model():
  config = _canonical(_lm(), dcn_mesh_shape=[2, 1, 1])
  assert config.ici_mesh_shape == [1, 2, 2]
  assert config.dcn_mesh_shape == [2, 1, 1]
  assert config.mesh_axis_names == AXES


def test_sequences_and_batches_may_be_split_over_other_axes():
  canonical = transformer_sharding.canonical_shardings(
    **CANONICAL,
    training_optimized=True,
    seq_axis='seq',
    batch_axes=['replica'],
  )
  assert canonical['w_dnh'] == [('data', 'seq'), 'mdl', None]
  assert canonical['w_vd'] == ['mdl', ('data', 'seq')]
  assert canonical['a_bld'] == [('replica',), 'seq', 'mdl']
  assert canonical['a_blnh'] == [('replica',), 'seq', 'mdl', None]


def test_experts_have_an_axis_of_their_own():
  names = ['replica', 'data', 'data_expert', 'mdl']
  config = _lm()
  config.cls.set_sharding_params_with_expert_parallelism(
    config,
    **{f'{name}_axis': name for name in names},
    ici_mesh_shape=[1, 2, 2, 2],
    mesh_axis_names=names,
    training_optimized=True,
  )
  layer = config.stacked_transformer_tpl.transformer_layer_params_tpl
  data = ('data', 'data_expert')
  assert layer.tr_fflayer_tpl.weight_split_dims_mapping.ffn0 == [data, 'mdl']
  experts = config.stacked_transformer_tpl.moe_layer_tpl
  weights = experts.weight_split_dims_mapping
  assert weights.emh == ['data_expert', 'data', 'mdl']
  assert weights.ehm == ['data_expert', 'mdl', 'data']
  activations = experts.activation_split_dims_mapping
  batch, groups = ('replica', *data), ('replica', 'data')
  assert activations.gs == [batch, None]
  assert activations.gsm == [batch, None, 'mdl']
  assert activations.egcm == ['data_expert', groups, None, 'mdl']
  assert activations.gecm == [groups, 'data_expert', None, 'mdl']


def test_the_vocabulary_has_the_mesh_and_is_looked_up_by_products():
  softmax = _canonical(_lm()).softmax_tpl
  assert softmax.lookup_style == 'matmul'
  assert softmax.ici_mesh_shape == [1, 2, 2]


def test_what_there_is_not_cannot_be_split():
  with pytest.raises(
    errors.UserError,
    match="has no tensor 'w_fd' to shard; did you mean: w_vd, w_df",
  ):
    TransformerLm.set_custom_sharding_params(
      _lm(), ici_mesh_shape=[1], mesh_axis_names=['data'], w_fd=[None, None]
    )
