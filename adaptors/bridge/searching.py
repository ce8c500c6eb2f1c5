"""Translated models whose outputs Lingvo post-processes, on the host.

A translated model trains and evaluates in JAX. Its targets are searched in JAX,
too, where the model has Lingvo's beam search; else by the Lingvo task itself,
in TensorFlow on the host, with the weights mapped back. Strings, boxes and
metrics are Lingvo's in both cases.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from absl import logging

from adaptors.bridge import calling, decoding, host_methods
from adaptors.bridge.lingvo_task import LingvoTask
from adaptors.params import params_trees
from adaptors.translate.tasks.single import TranslatedTask
from adaptors.translate.variables import VariableMap
from pax_compat import base_layer, base_model, config, errors, learners
from pax_compat.config import REQUIRED
from pax_compat.decoder_hparams import PrunedBeamSearchHParams
from pax_compat.decoding import decoder_utils
from pax_compat.layers.models.crossover_model import CrossoverModel
from pax_compat.layers.models.grid_detector import GridDetector
from pax_compat.layers.models.point_detector import PointDetector
from pax_compat.layers.models.sequence_model import SequenceModel
from pax_compat.layers.models.speech_model import SpeechModel
from pax_compat.nested_map import NestedMap

# Variables of a learner, which a search does not read.
_LEARNERS = 'learners['


class Weights:
  """The map of a model's variables; copying returns the same object.

  Attributes:
    variables: the map.
  """

  def __init__(self, variables: VariableMap):
    self.variables = variables

  def __repr__(self):
    return f'Weights({len(self.variables.variables)} variables)'

  def __deepcopy__(self, memo):
    return self

  def __eq__(self, other):
    return isinstance(other, Weights) and repr(self) == repr(other)

  __hash__ = None


class _Searched(base_model.BaseModel):
  """A model that a Lingvo task decodes.

  Attributes:
    lingvo_task: a `LingvoTask`.
    weights: the `Weights` that map this model's variables to the task's.
  """

  lingvo_task: Any = REQUIRED
  weights: Any = REQUIRED

  def decode(self, input_batch: NestedMap) -> base_model.DecodeOut:
    """Returns the inputs of a search, for `process_decode_out`."""
    trees = (
      self.variables.get(name, {})
      for name in (base_layer.PARAMS, base_layer.NON_TRAINABLE)
    )
    given = {
      'values': [dict(tree) for tree in trees],
      'batch': dict(input_batch),
      'seed': calling.seed(self.next_prng_key()),
    }
    return {}, given, {}

  def process_decode_out(
    self, input_obj: Any, decode_out: Any
  ) -> base_model.ProcessDecodeOut:
    """Decodes a batch in TensorFlow; see `decoding.process`."""
    del input_obj  # The Lingvo task has a separate tokenizer.
    return decoding.process(
      self.lingvo_task.decoder,
      self._theta(decode_out['values']),
      decode_out,
      np.int32(0),
    )

  def _theta(self, trees: Any) -> dict[str, np.ndarray]:
    """Returns all variables of the Lingvo task, by theta path."""
    arrays = {}
    for tree in trees:
      arrays |= learners.by_path(tree)
    theta = self.weights.variables.to_lingvo(arrays)
    for path, variable in self.lingvo_task.decoder.task.variables.items():
      if path.startswith(_LEARNERS):
        zeros = np.zeros(variable.shape, variable.dtype.as_numpy_dtype)
        theta.setdefault(path, zeros)
      elif path not in theta:
        raise errors.UserError(
          f'{self.lingvo_task}: the translation has no variable for {path}'
        )
    return theta

  def after_decoding(self):
    """Returns a function that calls the task's `DecodeFinalize`."""
    return host_methods.after_decoding(self.lingvo_task)


class SearchedSequenceModel(_Searched, SequenceModel):
  """A `SequenceModel` that a Lingvo task decodes."""


class _PrunedSearch(_Searched):
  """A model with Lingvo's beam search in JAX.

  Attributes:
    target_sos_id: the token that targets start with; None for the first token
      of the batch's targets.
  """

  target_sos_id: int | None = None

  def decode(self, input_batch: NestedMap) -> base_model.DecodeOut:
    """Returns the hypotheses, for `process_decode_out`."""
    out = self._search(input_batch)
    has_ended = out.scores > decoder_utils.NO_SCORE
    found = {
      # Without the begin token, which Lingvo's hypotheses lack.
      'ids': jnp.where(has_ended[..., None], out.output_ids[..., 1:], 0),
      'lengths': jnp.where(has_ended, out.decode_lengths - 1, 0),
      'scores': jnp.where(has_ended, out.scores, 0.0),
    }
    return {}, {'found': found, 'batch': dict(input_batch)}, {}

  def _search(self, input_batch: NestedMap) -> NestedMap:
    """Returns the result of a `SequenceModel`."""
    batch = NestedMap(input_batch)
    ids = batch.tgt.ids[:, :1]
    if self.target_sos_id is not None:
      ids = jnp.full_like(ids, self.target_sos_id)
    batch.tgt = NestedMap(ids=ids, paddings=jnp.zeros(ids.shape))
    return self.decode_with_params(batch, self.decoder_tpl)[1]

  def process_decode_out(
    self, input_obj: Any, decode_out: Any
  ) -> base_model.ProcessDecodeOut:
    """Post-processes a batch in TensorFlow; see `decoding.process_found`."""
    del input_obj  # The Lingvo task has a separate tokenizer.
    return decoding.process_found(self.lingvo_task.decoder, decode_out)


class PrunedSearchSequenceModel(_PrunedSearch, SequenceModel):
  """A `SequenceModel` with Lingvo's beam search in JAX."""


class PrunedSearchCrossoverModel(_PrunedSearch, CrossoverModel):
  """A `CrossoverModel` with Lingvo's beam search in JAX."""


class SearchedSpeechModel(_Searched, SpeechModel):
  """A `SpeechModel` that a Lingvo task decodes."""


class PrunedSearchSpeechModel(_PrunedSearch, SpeechModel):
  """A `SpeechModel` with Lingvo's beam search in JAX."""

  def _search(self, input_batch: NestedMap) -> NestedMap:
    return self.search(input_batch, self.target_sos_id)


class SearchedCrossoverModel(_Searched, CrossoverModel):
  """A `CrossoverModel` that a Lingvo task decodes."""


class SearchedPointDetector(_Searched, PointDetector):
  """A `PointDetector` that a Lingvo task decodes."""


class SearchedGridDetector(_Searched, GridDetector):
  """A `GridDetector` that a Lingvo task decodes."""


_ON_HOST = "decoding runs Lingvo's own search, in TensorFlow on the host"
_IN_JAX = (
  "Lingvo's beam search runs in JAX; its strings and metrics on the host"
)

# By class of a translated model: decoded by the Lingvo task, or in JAX.
_SEARCHED = {
  SequenceModel: (SearchedSequenceModel, PrunedSearchSequenceModel),
  CrossoverModel: (SearchedCrossoverModel, PrunedSearchCrossoverModel),
  SpeechModel: (SearchedSpeechModel, PrunedSearchSpeechModel),
  PointDetector: (SearchedPointDetector, None),
  GridDetector: (SearchedGridDetector, None),
}


def searched(translated: TranslatedTask, params: Any) -> TranslatedTask:
  """Returns a translated task, decoded by Lingvo if its targets are searched.

  Args:
    translated: the task.
    params: its Params, with its input.
  """
  model = translated.config.model
  if model.cls not in _SEARCHED:
    return translated
  fields = config.set_fields(model)
  (cls, in_jax), note = _SEARCHED[model.cls], _ON_HOST
  if _has_pruned_search(fields):
    cls, note = in_jax, _IN_JAX
    if not params_trees.get(params.decoder, 'init_step_ids'):
      fields['target_sos_id'] = params.decoder.target_sos_id
  logging.info('%s: %s', translated.config.name, note)
  own = cls.config(
    **fields,
    lingvo_task=LingvoTask(params, xla_device='cpu'),
    weights=Weights(translated.variables),
  )
  changed = translated.config.clone().set(model=own)
  return dataclasses.replace(
    translated, config=changed, notes=(*translated.notes, note)
  )


def _has_pruned_search(fields: dict[str, Any]) -> bool:
  """Whether fields of a model have Lingvo's beam search as the decoder."""
  return any(
    isinstance(field, config.Config) and field.cls is PrunedBeamSearchHParams
    for field in (fields.get('decoder_tpl'), fields.get('search_tpl'))
  )
