"""SeqIO tasks and mixtures as inputs, with their metrics."""

from adaptors.seqio_input.converters import (
  LanguageModelFeatures,
  PackedLanguageModelFeatures,
  PackedSequenceModelFeatures,
  RemoveProvenance,
  SequenceModelFeatures,
  SequenceModelFeaturesWithTaskInfo,
  UnflattenAndRemoveProvenance,
)
from adaptors.seqio_input.eval_configs import (
  MetricType,
  get_eval_hparams_for_seqio,
)
from adaptors.seqio_input.input_adaptor import SeqIOInput

__all__ = [
  'LanguageModelFeatures',
  'MetricType',
  'PackedLanguageModelFeatures',
  'PackedSequenceModelFeatures',
  'RemoveProvenance',
  'SeqIOInput',
  'SequenceModelFeatures',
  'SequenceModelFeaturesWithTaskInfo',
  'UnflattenAndRemoveProvenance',
  'get_eval_hparams_for_seqio',
]
