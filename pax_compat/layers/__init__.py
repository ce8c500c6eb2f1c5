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
from pax_compat.layers.additive_attention import (
  AdditiveAttention,
)
from pax_compat.layers.arguments import (
  Apply,
  ApplyToEach,
  Concat,
  LogShapes,
  MakeNestedMap,
  Reshape,
  Select,
  Slice,
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
from pax_compat.layers.flexible_attention import (
  FlexibleAttention,
  HeadSplit,
)
from pax_compat.layers.focal_softmax import (
  FocalSoftmax,
)
from pax_compat.layers.given_vectors import (
  GivenVectors,
)
from pax_compat.layers.graph import (
  Graph,
)
from pax_compat.layers.grouped_query_attention import (
  GroupedQueryAttention,
)
from pax_compat.layers.gshard_bert_model import (
  GShardBertModel,
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
from pax_compat.layers.local_attentions import (
  LocalSelfAttention,
  LocalSelfAttentionXL,
)
from pax_compat.layers.masked_lm import (
  MaskedLmDataAugmenter,
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
from pax_compat.layers.multi_task_model import (
  MultiTaskModel,
)
from pax_compat.layers.normalizations import (
  BaseNormalization,
  BatchNorm,
  GroupNorm,
  IdentityNorm,
  LayerNorm,
  PrimerNorm,
  RmsNorm,
  RmsNormNoScale,
  SpectralNorm,
  WeightNormL2,
)
from pax_compat.layers.packed_language_model import (
  PackedLanguageModel,
)
from pax_compat.layers.pipelined_transformers import (
  PipelinedTransformer,
)
from pax_compat.layers.pipelines import (
  CircularLayerwiseShardablePipelined,
  LayerwiseShardablePipelined,
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
from pax_compat.layers.relative_attentions import (
  ClippedDistanceEmbedding,
  DotProductAttentionRPE,
  DotProductAttentionXL,
  SelfAttention,
)
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
from pax_compat.layers.rnn_mixture_lm import (
  RnnMixtureLm,
)
from pax_compat.layers.rotary_embedding import (
  RotaryPositionalEmbedding,
)
from pax_compat.layers.sampled_softmax import SampledSoftmax
from pax_compat.layers.scaled_positions import (
  ScaledPositionalEmbedding,
)
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
from pax_compat.layers.transformer_moe import (
  TransformerFeedForwardMoe,
)
from pax_compat.layers.transformer_residuals import (
  ResidualBlock,
)
from pax_compat.layers.transformers import (
  Transformer,
)
from pax_compat.layers.transparent_transformers import (
  TransparentTransformer,
)
from pax_compat.layers.wrappers import (
  OneArgument,
  ParallelRepeat,
  Rematerialize,
  RepeatAll,
  SoftCond,
)

__all__ = [
  'AdditiveAttention',
  'Apply',
  'ApplyToEach',
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
  'CircularLayerwiseShardablePipelined',
  'ClassificationMLPModel',
  'ClassificationModel',
  'ClippedDistanceEmbedding',
  'CombinedQKVProjectionLayer',
  'Concat',
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
  'DotProductAttentionRPE',
  'DotProductAttentionXL',
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
  'FlexibleAttention',
  'FocalSoftmax',
  'FullSoftmax',
  'GELU',
  'GShardBertModel',
  'GShardSharedEmbeddingSoftmax',
  'GivenVectors',
  'GlobalPooling',
  'Graph',
  'GroupNorm',
  'GroupedQueryAttention',
  'HeadSplit',
  'Identity',
  'IdentityNorm',
  'LanguageModel',
  'LanguageModelType',
  'LayerNorm',
  'LayerNormalizedLstmCellSimple',
  'LayerwiseShardablePipelined',
  'LeakyReLU',
  'LightConv1D',
  'Linear',
  'LocalSelfAttention',
  'LocalSelfAttentionXL',
  'LogShapes',
  'LstmCellSimple',
  'LstmFrnn',
  'MLPBlock',
  'MakeNestedMap',
  'MaskedLmDataAugmenter',
  'MultiQueryDotProductAttention',
  'MultiTaskModel',
  'NClassMajorSharedEmbeddingSoftmax',
  'OneArgument',
  'OneHeadedAttentionProjection',
  'PackedLanguageModel',
  'Parallel',
  'ParallelRepeat',
  'PerDimScale',
  'PipelinedTransformer',
  'Pooling',
  'Pooling1D',
  'PositionalEmbedding',
  'PositionalEmbedding2D',
  'PrimerNorm',
  'ReLU',
  'ReLU6',
  'RelativeBias',
  'Rematerialize',
  'Repeat',
  'RepeatAll',
  'Reshape',
  'ResidualBlock',
  'RmsNorm',
  'RmsNormNoScale',
  'RnnLm',
  'RnnMixtureLm',
  'RotaryPositionalEmbedding',
  'SampledSoftmax',
  'ScaledPositionalEmbedding',
  'Select',
  'SelfAttention',
  'SequenceModel',
  'Sequential',
  'SharedEmbeddingSoftmax',
  'SiLU',
  'Sigmoid',
  'SigmoidCrossEntropy',
  'SineReLU',
  'Slice',
  'SoftCond',
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
  'TransformerFeedForwardMoe',
  'TransformerLm',
  'TransparentTransformer',
  'WeightNormL2',
]
