"""Base classes of language-model experiments, as in `paxml.tasks.lm`.

`model_params` has the names of Pax's module of that name. Class attributes of a
derived experiment configure the model, its training and its mesh; a mixin adds
the data.
"""

from lm_tasks.model_params.bert import (
  TransformerBertPmapAdam,
  TransformerBertSpmdAdafactor,
)
from lm_tasks.model_params.classification import ClassificationModelAdam
from lm_tasks.model_params.pipelined_lm import (
  TransformerLmSpmdPipelineAdafactor,
)
from lm_tasks.model_params.pmap_lm import TransformerLmPmapAdam
from lm_tasks.model_params.settings import (
  maybe_setup_moe_params,
  set_default_adafactor,
  set_default_adam,
  set_sharding_annotations_v1,
  set_sharding_annotations_with_expert_parallelism,
)
from lm_tasks.model_params.spmd_lm import TransformerLmSpmdAdafactor

__all__ = [
  'ClassificationModelAdam',
  'TransformerBertPmapAdam',
  'TransformerBertSpmdAdafactor',
  'TransformerLmPmapAdam',
  'TransformerLmSpmdAdafactor',
  'TransformerLmSpmdPipelineAdafactor',
  'maybe_setup_moe_params',
  'set_default_adafactor',
  'set_default_adam',
  'set_sharding_annotations_v1',
  'set_sharding_annotations_with_expert_parallelism',
]
