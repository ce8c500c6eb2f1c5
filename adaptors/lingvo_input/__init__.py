"""Lingvo's input generators as inputs for JAX."""

from adaptors.lingvo_input.eval_adaptors import (
  LingvoEvalAdaptor,
  LingvoLazyEvalAdaptor,
)
from adaptors.lingvo_input.input_adaptor import LingvoInputAdaptor
from adaptors.lingvo_input.new_batch_size import LingvoInputAdaptorNewBatchSize

__all__ = [
  'LingvoEvalAdaptor',
  'LingvoInputAdaptor',
  'LingvoInputAdaptorNewBatchSize',
  'LingvoLazyEvalAdaptor',
]
