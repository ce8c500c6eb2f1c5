"""What the translators of encoders and decoders have in common."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from adaptors.translate import registry
from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView


@dataclasses.dataclass(frozen=True)
class Part:
  """An encoder or a decoder.

  Attributes:
    network: the class of the network that it is a part of.
    fields: fields of the network's config.
    both: fields that encoder and decoder must agree on.
    variables: maps its variables to the network's.
    model_fields: fields of the model, from a decoder.
  """

  network: type
  fields: Mapping[str, Any]
  both: Mapping[str, Any]
  variables: VariableMap
  model_fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def read_search(view: ParamsView):
  """Reads the fields of a decoder that only Lingvo's searches read.

  A translated model is decoded by them; see `adaptors.bridge.searching`.
  """
  for name in (
    'target_sos_id',
    'target_eos_id',
    'target_seq_len',
    'beam_search',
    'greedy_search',
    'target_sequence_sampler',
    'bias_only_if_consistent',
    'stochastic_beam_search_top_k',
    'init_step_ids',  # Of mt only.
  ):
    if name in view.params:
      view.get(name)


def loss_fields(view: ParamsView) -> dict[str, Any]:
  """Returns fields of the model for a decoder's loss."""
  view.ignore(
    'per-example outputs are those of the JAX model', 'per_example_tensors'
  )
  return {} if view.get('per_word_avg_loss') else {'loss_per_sequence': True}


def smoothing(view: ParamsView) -> float | None:
  """Returns the probability that label smoothing takes from labels."""
  if view.get('label_smoothing') is None:
    return 0.0
  return registry.translate(
    view.child('label_smoothing', num_classes=view.params.softmax.num_classes)
  )
