"""Cases of adapters, quantizers, state space models, n-grammers and chains."""

import numpy as np

from tests.pax.layer_cases import Case, normal, paddings

_X = normal(2, 5, 6)
_PADDED = paddings(5, 5, 3)
_ADAPTED = dict(paddings=_PADDED, tasks=np.array([1, 0]))
_IDS = np.array([[1, 2, 3, 1, 0], [4, 4, 2, 0, 0]])
_HEADS = dict(input_dim=6, num_heads=2, dim_per_head=4)


def _of(cls: str, **fields):
  return lambda n: n.Config(getattr(n.layers, cls), **fields)


def _adapter(**fields):
  sizes = dict(input_dims=6, bottleneck_dims=3)
  return _of('MultitaskResidualAdapter', **(sizes | fields))


def _adapted(mode: str):
  def config(n):
    return n.Config(
      n.layers.AdaptedTransformerFeedForward,
      input_dims=6,
      hidden_dims=8,
      mode=mode,
      residual_weight=0.5,
      adapter_tpl=_adapter(norm_tpl=None, num_tasks=2)(n),
    )

  return config


_PCA = dict(num_components=3, start_step=0, end_step=10)


def _pca(**fields):
  return _of('BregmanPCA', **(dict(_PCA, input_dims=6) | fields))


_RANDOM = dict(latent_dim=6, projection_dim=4, num_latent_classes=7)
_VQ = dict(latent_dim=6, num_latent_classes=7, beta=0.3)
_NGRAM = dict(num_heads=2, dim_per_head=3, ngram_vocab_size=20)


def _vq_ngrammer(**fields):
  sizes = dict(_NGRAM, num_clusters=4, ngram_emb_dim=3, unigram_vocab_size=5)
  return _of('VQNgrammer', **(sizes | fields))


def _lm_with_ngrams(n):
  """A language model of one layer; its output is that of the layers."""
  lm = n.Config(
    n.layers.TransformerLm,
    vocab_size=5,
    model_dims=6,
    skip_compute_loss=True,
    ngrammer_tpl=_of(
      'Ngrammer', unigram_vocab_size=5, ngram_emb_dim=2, **_NGRAM
    )(n),
  )
  lm.stacked_transformer_tpl.set(
    model_dims=6, hidden_dims=8, num_heads=2, num_layers=1
  )
  return lm


def _local_attention(cls: str):
  """Attention by blocks; its weights are an output, as always in Pax."""

  def config(n):
    layer = n.Config(
      getattr(n.layers, cls),
      input_dim=6,
      hidden_dim=8,
      num_heads=2,
      block_size=3,
      left_context=2,
      right_context=1,
      internal_enable_per_dim_scale=False,
    )
    if hasattr(layer, 'return_atten_probs'):
      layer.return_atten_probs = True
    return layer

  return config


def _ssm(cls: str, **fields):
  sizes = dict(nheads=4, dim=6, l_max=8, step_size=0.1)
  return _of(cls, **(sizes | fields))


_CROSS = dict(
  cross_inputs=normal(2, 3, 6, seed=1),
  cross_attention_mask=np.zeros([2, 1, 1, 3], np.float32),
)


def _ssm_transformer(cls: str, **fields):
  sizes = dict(input_dims=6, hidden_dims=8, num_heads=2)
  ssm = dict(ssm_nheads=4, ssm_dim=6, ssm_l_max=8)
  return _of(cls, **sizes, **ssm, **fields)


def _chain(n):
  """Two layers, with a residual connection around a third."""
  relu = n.Config(n.layers.ReLU)
  return n.chain.chain(
    n.chain.feed_forward(6, 4, relu),
    n.chain.add_residual(
      n.chain.copy_n_times(2, n.chain.feed_forward(4, 4, relu)),
      n.chain.apply_padding(),
    ),
    n.chain.feed_forward(4, 3),
  )


def _sequential(n):
  return n.Config(
    n.layers.Sequential,
    layers=[
      n.Config(n.layers.Linear, input_dims=6, output_dims=4),
      n.Config(n.layers.FeedForward, input_dims=4, output_dims=3),
    ],
  )


CASES = {
  'lora_linear': Case(
    _of('LoraLinear', input_dims=6, output_dims=4, rank=2), (_X,)
  ),
  'lora_projection': Case(
    _of('LoraAttentionProjection', rank=2, **_HEADS), (_X,)
  ),
  'lora_output': Case(
    _of('LoraAttentionProjection', rank=2, is_output_projection=True, **_HEADS),
    (normal(2, 5, 2, 4),),
  ),
  'lora_combined': Case(
    _of('LoraCombinedQKVProjection', rank=2, **_HEADS), (_X,)
  ),
  'adapter': Case(_adapter(), (_X, _PADDED)),
  'adapter_tasks': Case(_adapter(num_tasks=3), (_X, _PADDED, np.array([2, 0]))),
  'adapter_positions': Case(
    _adapter(num_tasks=3, norm_tpl=None),
    (_X, _PADDED, np.array([[0, 1, 2, 1, 0], [2, 2, 0, 1, 1]])),
  ),
  'adapted_sequential': Case(_adapted('sequential'), (_X,), named=_ADAPTED),
  'adapted_parallel': Case(_adapted('parallel'), (_X,), named=_ADAPTED),
  'pca': Case(_pca(), (_X[:, 0],)),
  'pca_leaky': Case(
    _pca(activation_type='LEAKY_RELU', negative_slope=0.3), (_X[:, 0],)
  ),
  'pca_softmax': Case(
    _pca(activation_type='SOFTMAX', constant_lr_schedule=False),
    (np.exp(_X[:, 0]) / np.exp(_X[:, 0]).sum(-1, keepdims=True),),
  ),
  'pca_eval': Case(_pca(input_dims=[5, 6]), (_X,), train=False),
  'random_quantizer': Case(
    _of('RandomVectorQuantizer', **_RANDOM), (_X, _PADDED)
  ),
  'random_quantizer_stacked': Case(
    _of(
      'RandomVectorQuantizer',
      **_RANDOM,
      num_groups=2,
      stack_ratio=2,
      normalize_latent_vector=True,
      normalize_codebook=True,
    ),
    (_X, _PADDED),
  ),
  'random_quantizer_flat': Case(
    _of(
      'RandomVectorQuantizer',
      **_RANDOM,
      low_rank_codebook=True,
      normalize_latent_vector=True,
      normalize_latent_per_group=False,
    ),
    (_X, _PADDED),
  ),
  'vector_quantizer': Case(
    _of('VectorQuantizer', **_VQ), (_X,), named=dict(paddings=_PADDED)
  ),
  'vector_quantizer_groups': Case(
    _of(
      'VectorQuantizer', **_VQ, num_groups=2, normalize_latent_per_group=False
    ),
    (_X, _PADDED),
  ),
  'vector_quantizer_lookup': Case(
    _of('VectorQuantizer', **_VQ),
    (np.array([[[3], [1]]]),),
    method='look_up',
  ),
  'clusters': Case(
    _of('VectorQuantization', num_clusters=4, num_heads=2, dim_per_head=3),
    (_X, _PADDED),
  ),
  'clusters_normalized': Case(
    _of(
      'VectorQuantization',
      num_clusters=4,
      num_heads=2,
      dim_per_head=3,
      prenormalize=True,
    ),
    (_X,),
  ),
  'compression': Case(
    _of('BregmanCompression', num_heads=2, dim_per_head=3, **_PCA),
    (_X, _PADDED),
  ),
  'ngrammer': Case(
    _of('Ngrammer', unigram_vocab_size=5, ngram_emb_dim=2, **_NGRAM),
    (_IDS, _X, _PADDED),
  ),
  'ngrammer_added': Case(
    _of(
      'Ngrammer',
      unigram_vocab_size=5,
      ngram_emb_dim=3,
      concat_ngrams=False,
      **_NGRAM,
    ),
    (_IDS, _X),
    named=dict(segment_pos=np.array([[0, 1, 0, 1, 2], [0, 1, 2, 3, 4]])),
  ),
  'vq_ngrammer': Case(_vq_ngrammer(), (_IDS, _X, _PADDED)),
  'vq_ngrammer_attention': Case(
    _vq_ngrammer(ngram_using_attention_scores=True),
    (_IDS, _X),
    named=dict(attention_scores=normal(2, 2, 5, 5)),
  ),
  'bregman_ngrammer': Case(
    _of(
      'BregmanNgrammer',
      num_components=2,
      ngram_emb_dim=2,
      end_step=10,
      **_NGRAM,
    ),
    (None, _X, _PADDED),
  ),
  'ngrammer_lm': Case(_lm_with_ngrams, (_IDS, np.zeros([2, 5], np.int32))),
  'ngrammer_stub': Case(
    _of('NgrammerStub', num_heads=2, dim_per_head=3), (None, _X, _PADDED)
  ),
  **{
    f'local_{name.lower()}': Case(
      _local_attention(f'LocalSelfAttention{name}'),
      (_X, _X, _X, np.zeros([2, 1, 1, 5], np.float32)),
    )
    for name in ('RelativeBias', 'Alibi')
  },
  'ssm': Case(_ssm('SSM'), (_X,)),
  'ssm_legs': Case(_ssm('SSM', hippo_type='s4d-legs'), (_X,)),
  'ssm_lagt': Case(_ssm('SSM', hippo_type='s4d-lagt'), (_X,)),
  's5': Case(_ssm('S5'), (_X,)),
  **{
    f'{name}{ending}': Case(
      _ssm_transformer(cls, **fields),
      (_X,),
      dict(
        paddings=_PADDED,
        attention_mask=np.zeros([2, 1, 5, 5], np.float32),
        **(_CROSS if fields else {}),
      ),
    )
    for name, cls in (('ssm_layer', 'SSMTransformer'), ('gated', 'SSMGated'))
    for ending, fields in (
      ('', {}),
      ('_cross', dict(use_cross_attention=True, norm_policy='primer_hybrid')),
    )
  },
  's5_legs': Case(_ssm('S5', hippo_type='s5-legs'), (_X,)),
  'chain': Case(_chain, (_X, _PADDED)),
  'sequential': Case(_sequential, (_X,)),
}
