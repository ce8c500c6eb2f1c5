"""The layers of the framework, each by its name: `layers.Linear`."""

from pax_compat.layers.activations import (
  ELU,
  GELU,
  BaseActivation,
  CubedReLU,
  Exp,
  Identity,
  LeakyReLU,
  ReLU,
  ReLU6,
  Sigmoid,
  SiLU,
  SineReLU,
  Softplus,
  SquaredReLU,
  Swish,
  Tanh,
)
from pax_compat.layers.attention_decoding import (
  DecodableAttention,
)
from pax_compat.layers.attention_projections import (
  AttentionProjection,
  CombinedQKVProjectionLayer,
  OneHeadedAttentionProjection,
  PerDimScale,
)
from pax_compat.layers.attentions import (
  DotProductAttention,
)
from pax_compat.layers.checkpoint_policy import (
  AutodiffCheckpointType,
)
from pax_compat.layers.containers import (
  Branch,
  Parallel,
  Sequential,
)
from pax_compat.layers.convolutions import (
  BaseConv,
  Conv1D,
  Conv2D,
  Conv3D,
  ConvBNAct,
  ConvBNActWithPadding,
)
from pax_compat.layers.depthwise_convolutions import (
  BaseDepthwiseConv1D,
  CausalDepthwiseConv1D,
  DepthwiseConv1D,
)
from pax_compat.layers.einsum import (
  Einsum,
)
from pax_compat.layers.embedding_softmax import (
  GShardSharedEmbeddingSoftmax,
  NClassMajorSharedEmbeddingSoftmax,
  SharedEmbeddingSoftmax,
)
from pax_compat.layers.embeddings import (
  Embedding,
)
from pax_compat.layers.flax_adapter import (
  DirectFlaxModuleAdapter,
  EncoderDecoderFlaxModuleAdaptor,
  FlaxModuleAdapter,
  FlaxModuleAdapterBase,
)
from pax_compat.layers.graph import (
  Graph,
)
from pax_compat.layers.grouped_query_attention import (
  GroupedQueryAttention,
)
from pax_compat.layers.light_convolutions import (
  LightConv1D,
)
from pax_compat.layers.linears import (
  Bias,
  FeedForward,
  Linear,
  MLPBlock,
)
from pax_compat.layers.models import (
  BertModel,
  ClassificationMLPModel,
  ClassificationModel,
  LanguageModel,
  SequenceModel,
)
from pax_compat.layers.multi_query_attention import (
  MultiQueryDotProductAttention,
)
from pax_compat.layers.normalizations import (
  BaseNormalization,
  BatchNorm,
  GroupNorm,
  IdentityNorm,
  LayerNorm,
  RmsNorm,
  RmsNormNoScale,
  SpectralNorm,
  WeightNormL2,
)
from pax_compat.layers.poolings import (
  GlobalPooling,
  Pooling,
  Pooling1D,
)
from pax_compat.layers.positional_embeddings import (
  PositionalEmbedding,
  PositionalEmbedding2D,
  TrainablePositionalEmbedding,
)
from pax_compat.layers.recurrent import (
  BidirectionalFrnn,
  FRnn,
  LstmFrnn,
)
from pax_compat.layers.recurrent_stacks import StackBiFrnn, StackFrnn
from pax_compat.layers.relative_bias import (
  RelativeBias,
)
from pax_compat.layers.repeats import (
  Repeat,
)
from pax_compat.layers.rnn_cells import (
  BaseRnnCell,
  CifgLstmCellSimple,
  LayerNormalizedLstmCellSimple,
  LstmCellSimple,
)
from pax_compat.layers.rnn_lm import RnnLm
from pax_compat.layers.rotary_embedding import (
  RotaryPositionalEmbedding,
)
from pax_compat.layers.sampled_softmax import SampledSoftmax
from pax_compat.layers.sigmoid_cross_entropy import (
  SigmoidCrossEntropy,
)
from pax_compat.layers.softmaxes import (
  BaseSoftmax,
  FullSoftmax,
)
from pax_compat.layers.stacked_transformers import (
  StackedTransformer,
  StackedTransformerRepeated,
)
from pax_compat.layers.stacking_over_time import (
  StackingOverTime,
)
from pax_compat.layers.stochastics import (
  Dropout,
  StochasticResidual,
)
from pax_compat.layers.token_counter import (
  TokenCounter,
)
from pax_compat.layers.transformer_encoder_decoder import (
  TransformerEncoderDecoder,
)
from pax_compat.layers.transformer_feed_forward import (
  TransformerFeedForward,
)
from pax_compat.layers.transformer_models import (
  LanguageModelType,
  TransformerLm,
)
from pax_compat.layers.transformer_residuals import (
  ResidualBlock,
)
from pax_compat.layers.transformers import (
  Transformer,
)

__all__ = [
  'AttentionProjection',
  'AutodiffCheckpointType',
  'BaseActivation',
  'BaseConv',
  'BaseDepthwiseConv1D',
  'BaseNormalization',
  'BaseRnnCell',
  'BaseSoftmax',
  'BatchNorm',
  'BertModel',
  'Bias',
  'BidirectionalFrnn',
  'Branch',
  'CausalDepthwiseConv1D',
  'CifgLstmCellSimple',
  'ClassificationMLPModel',
  'ClassificationModel',
  'CombinedQKVProjectionLayer',
  'Conv1D',
  'Conv2D',
  'Conv3D',
  'ConvBNAct',
  'ConvBNActWithPadding',
  'CubedReLU',
  'DecodableAttention',
  'DepthwiseConv1D',
  'DirectFlaxModuleAdapter',
  'DotProductAttention',
  'Dropout',
  'ELU',
  'Einsum',
  'Embedding',
  'EncoderDecoderFlaxModuleAdaptor',
  'Exp',
  'FRnn',
  'FeedForward',
  'FlaxModuleAdapter',
  'FlaxModuleAdapterBase',
  'FullSoftmax',
  'GELU',
  'GShardSharedEmbeddingSoftmax',
  'GlobalPooling',
  'Graph',
  'GroupNorm',
  'GroupedQueryAttention',
  'Identity',
  'IdentityNorm',
  'LanguageModel',
  'LanguageModelType',
  'LayerNorm',
  'LayerNormalizedLstmCellSimple',
  'LeakyReLU',
  'LightConv1D',
  'Linear',
  'LstmCellSimple',
  'LstmFrnn',
  'MLPBlock',
  'MultiQueryDotProductAttention',
  'NClassMajorSharedEmbeddingSoftmax',
  'OneHeadedAttentionProjection',
  'Parallel',
  'PerDimScale',
  'Pooling',
  'Pooling1D',
  'PositionalEmbedding',
  'PositionalEmbedding2D',
  'ReLU',
  'ReLU6',
  'RelativeBias',
  'Repeat',
  'ResidualBlock',
  'RmsNorm',
  'RmsNormNoScale',
  'RnnLm',
  'RotaryPositionalEmbedding',
  'SampledSoftmax',
  'SequenceModel',
  'Sequential',
  'SharedEmbeddingSoftmax',
  'SiLU',
  'Sigmoid',
  'SigmoidCrossEntropy',
  'SineReLU',
  'Softplus',
  'SpectralNorm',
  'SquaredReLU',
  'StackBiFrnn',
  'StackFrnn',
  'StackedTransformer',
  'StackedTransformerRepeated',
  'StackingOverTime',
  'StochasticResidual',
  'Swish',
  'Tanh',
  'TokenCounter',
  'TrainablePositionalEmbedding',
  'Transformer',
  'TransformerEncoderDecoder',
  'TransformerFeedForward',
  'TransformerLm',
  'WeightNormL2',
]
