"""Matching the examples of a SeqIO task with the model's outputs.

Shapes: N examples, T tokens.
"""

import collections
import functools
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from pax_compat import errors

# Names of model outputs for metrics: the predicted text, and the score (the
# log-probability of the targets).
PREDICTION = 'decoded_substr'
SCORE = 'scores'

_TARGETS = 'targets'
_TEXTS = 'targets_pretokenized'
# Maximum number of example keys in a message.
_SHOWN = 5


class Matched:
  """Examples in the order of the data, each with its output.

  The arguments of metrics are computed at first use.

  Attributes:
    keys: N unique keys.
    examples: N examples of the task's dataset.
    outputs: N outputs of the model, values by name.
  """

  def __init__(
    self,
    task: Any,
    found: list[tuple[Hashable, Mapping[str, Any], Mapping[str, Any]]],
    *,
    name: str,
  ):
    """Initializes it.

    Args:
      task: the SeqIO task.
      found: N keys, examples and outputs.
      name: name of the dataset, for messages.
    """
    self.keys = [key for key, _, _ in found]
    self.examples = [example for _, example, _ in found]
    self.outputs = [output for _, _, output in found]
    self._task = task
    self._name = name

  @functools.cached_property
  def target_texts(self) -> list[Any]:
    """The targets as strings: the feature, or the decoded tokens.

    Raises:
      UserError: an example has neither.
    """
    return [self._target_text(example) for example in self.examples]

  @functools.cached_property
  def targets(self) -> list[Any]:
    """The targets, postprocessed."""
    return self.postprocessed(
      self.target_texts, self._task.postprocess_fn, is_target=True
    )

  @functools.cached_property
  def prediction_texts(self) -> list[Any]:
    """The predictions as strings.

    Raises:
      UserError: an output has no prediction.
    """
    return self.values(PREDICTION, 'predictions')

  @functools.cached_property
  def predictions(self) -> list[Any]:
    """The predictions, postprocessed."""
    return self.postprocessed(
      self.prediction_texts, self._task.postprocess_fn, is_target=False
    )

  @functools.cached_property
  def scores(self) -> np.ndarray:
    """The scores, [N] or [N, ...].

    Raises:
      UserError: an output has no score.
    """
    return column(self.values(SCORE, 'scores'))

  def values(self, key: str, what: str) -> list[Any]:
    """Returns a value of each output.

    Args:
      key: name of the value.
      what: description of the value, for messages.

    Raises:
      UserError: an output lacks the value.
    """
    for output in self.outputs:
      if not isinstance(output, Mapping):
        found = f'a {type(output).__name__}'
      elif key not in output:
        found = _listed(output)
      else:
        continue
      raise errors.UserError(
        f'{self._name!r}: metrics of the SeqIO task {self._task.name!r} need'
        f' {what} as the output {key!r} of each example; the model returns'
        f' {found}'
      )
    return [_scalar(output[key]) for output in self.outputs]

  def others(self, main: str) -> dict[str, np.ndarray]:
    """Returns the other values that all outputs have, by name."""
    names = set.intersection(*(set(output) for output in self.outputs))
    return {
      name: column([output[name] for output in self.outputs])
      for name in sorted(names - {main})
    }

  def postprocessed(
    self, values: list[Any], postprocess: Callable, *, is_target: bool
  ) -> list[Any]:
    """Returns postprocessed targets or predictions.

    Args:
      values: N targets or predictions.
      postprocess: postprocessor of the task or of a metric.
      is_target: whether they are targets.
    """
    return [
      postprocess(value, example=example, is_target=is_target)
      for value, example in zip(values, self.examples, strict=True)
    ]

  def _target_text(self, example: Mapping[str, Any]) -> Any:
    if _TEXTS in example:
      text = _scalar(example[_TEXTS])
    elif _TARGETS in example:
      vocabulary = self._task.output_features[_TARGETS].vocabulary
      text = vocabulary.decode(np.asarray(example[_TARGETS]).tolist())
    else:
      raise errors.UserError(
        f'{self._name!r}: an example of the SeqIO task {self._task.name!r} has'
        f' {_listed(example)}; expected {_TARGETS!r} or {_TEXTS!r}, for the'
        ' metrics of the task'
      )
    return text.decode('utf-8') if isinstance(text, bytes) else text


def match(
  task: Any,
  outputs: Iterable[tuple[Hashable, Any]],
  targets: Iterable[tuple[Hashable, Mapping[str, Any]]],
  *,
  name: str,
) -> Matched:
  """Finds the output of each example.

  Args:
    task: the SeqIO task.
    outputs: key and output of each example, in any order.
    targets: key and features of each example, in the order of the data.
    name: name of the dataset, for messages.

  Raises:
    UserError: an example has no output or more than one, or an output belongs
      to no example.
  """
  by_key, counts = {}, collections.Counter()
  for key, output in outputs:
    by_key[key] = output
    counts[key] += 1
  found, missing = [], []
  for key, example in targets:
    if key in by_key:
      found.append((key, example, by_key.pop(key)))
    else:
      missing.append(key)
  wrong = {
    'without an output': missing,
    'with several outputs': [key for key, n in counts.items() if n > 1],
    'that have an output but are not in the data': list(by_key),
  }
  if any(wrong.values()):
    problems = '; '.join(
      f'{len(keys)} {what} ({errors.short_list(keys, _SHOWN)})'
      for what, keys in wrong.items()
      if keys
    )
    raise errors.UserError(
      f'{name!r}: of {len(found) + len(missing)} examples of the SeqIO task'
      f' {task.name!r}, by their indices in the data: {problems}; expected'
      ' one output for each'
    )
  return Matched(task, found, name=name)


def column(values: list[Any]) -> np.ndarray:
  """Returns the values of N examples as one array.

  Arrays of different lengths are padded with zeros; values of different ranks
  become an array of objects. Types that are not NumPy's own, such as bfloat16,
  become float32, since NumPy would sum them imprecisely.
  """
  arrays = [_in_numpy_types(value) for value in values]
  if len({array.ndim for array in arrays}) == 1:
    shape = np.max([array.shape for array in arrays], axis=0).astype(int)
    return np.stack([_padded(array, shape) for array in arrays])
  made = np.empty(len(values), object)
  for row, value in enumerate(values):
    made[row] = value
  return made


def _in_numpy_types(value: Any) -> np.ndarray:
  array = np.asarray(value)
  return array.astype(np.float32) if array.dtype.kind == 'V' else array


def _padded(array: np.ndarray, shape: np.ndarray) -> np.ndarray:
  if tuple(shape) == array.shape:
    return array
  return np.pad(
    array, [(0, new - old) for new, old in zip(shape, array.shape, strict=True)]
  )


def _scalar(value: Any) -> Any:
  """Returns the object in a scalar array of objects; others unchanged."""
  if isinstance(value, np.ndarray) and not value.ndim and value.dtype == object:
    return value.item()
  return value


def _listed(fields: Mapping[str, Any]) -> str:
  return ', '.join(sorted(fields)) or 'nothing'
