"""What the translators of encoders and decoders have in common."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from adaptors.translate import registry
from adaptors.translate.variables import VariableMap
from adaptors.translate.view import ParamsView, class_path
from pax_compat.config import Config
from pax_compat.decoder_hparams import PrunedBeamSearchHParams

_SEARCH = 'lingvo.core.beam_search_helper.BeamSearchHelper'
# Settings with the same names.
_SEARCH_FIELDS = (
  'valid_eos_max_logit_delta',
  'local_eos_threshold',
  'coverage_penalty',
  'target_seq_length_ratio',
  'ensure_full_beam',
  'force_eos_in_last_step',
  'force_eos_in_top_k',
  'terminate_beams_independently',
)


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

  See `adaptors.bridge.searching`.
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


def search_settings(view: ParamsView, *, has_coverage: bool) -> Config | None:
  """Returns the settings of a decoder's beam search.

  None where only Lingvo's own search can decode, on the host.

  Args:
    view: of the decoder.
    has_coverage: whether the network has the state that a coverage penalty
      needs.
  """
  read_search(view)
  search = view.params.beam_search
  if (
    class_path(search.cls) != _SEARCH
    or search.target_eoc_id >= 0
    or search.merge_paths
    or (search.coverage_penalty and not has_coverage)
    or view.params.target_seq_len < 1
    or search.num_hyps_per_beam >= view.params.softmax.num_classes
  ):
    return None
  steps = view.params.target_seq_len
  fields = {name: search.Get(name) for name in _SEARCH_FIELDS}
  return PrunedBeamSearchHParams.config(
    beam_size=search.num_hyps_per_beam,
    seqlen=steps + 1,
    max_decode_steps=steps,
    eos_id=view.params.target_eos_id,
    length_norm_alpha=search.length_normalization,
    max_score_gap=search.beam_size,
    **fields,
  )


def model_fields(view: ParamsView, search: Config | None) -> dict[str, Any]:
  """Returns fields of the model, from a decoder.

  Args:
    view: of the decoder.
    search: its `search_settings`.
  """
  view.ignore(
    'per-example outputs are those of the JAX model', 'per_example_tensors'
  )
  fields = {} if search is None else {'decoder_tpl': search}
  if not view.get('per_word_avg_loss'):
    fields['loss_per_sequence'] = True
  return fields


def smoothing(view: ParamsView) -> float | None:
  """Returns the probability that label smoothing takes from labels."""
  if view.get('label_smoothing') is None:
    return 0.0
  return registry.translate(
    view.child('label_smoothing', num_classes=view.params.softmax.num_classes)
  )
