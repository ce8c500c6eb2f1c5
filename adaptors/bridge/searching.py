"""Translated models that Lingvo decodes, on the host.

A translated model trains and evaluates in JAX. Its targets are searched by the
Lingvo task itself, in TensorFlow on the host, with the weights mapped back: the
hypotheses, or boxes, and metrics are Lingvo's.
"""

import dataclasses
from typing import Any

import numpy as np
from absl import logging

from adaptors.bridge import calling, decoding, host_methods
from adaptors.bridge.lingvo_task import LingvoTask
from adaptors.translate.tasks.single import TranslatedTask
from adaptors.translate.variables import VariableMap
from pax_compat import base_layer, base_model, config, errors, learners
from pax_compat.config import REQUIRED
from pax_compat.layers.models.crossover_model import CrossoverModel
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


class SearchedSpeechModel(_Searched, SpeechModel):
  """A `SpeechModel` that a Lingvo task decodes."""


class SearchedCrossoverModel(_Searched, CrossoverModel):
  """A `CrossoverModel` that a Lingvo task decodes."""


class SearchedPointDetector(_Searched, PointDetector):
  """A `PointDetector` that a Lingvo task decodes."""


# By class of a translated model.
_SEARCHED = {
  SequenceModel: SearchedSequenceModel,
  CrossoverModel: SearchedCrossoverModel,
  SpeechModel: SearchedSpeechModel,
  PointDetector: SearchedPointDetector,
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
  note = "decoding runs Lingvo's own search, in TensorFlow on the host"
  logging.info('%s: %s', translated.config.name, note)
  own = _SEARCHED[model.cls].config(
    **config.set_fields(model),
    lingvo_task=LingvoTask(params, xla_device='cpu'),
    weights=Weights(translated.variables),
  )
  changed = translated.config.clone().set(model=own)
  return dataclasses.replace(
    translated, config=changed, notes=(*translated.notes, note)
  )
