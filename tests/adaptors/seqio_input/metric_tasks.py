"""SeqIO tasks with metrics, for tests.

Example i asks 'question i:', and its target is the answer to that.
"""

import functools
import re

import numpy as np

from adaptors import lingvo_runtime

SPLITS = ('validation', 'test')


def answer(number: int) -> str:
  """Returns the target of an example."""
  return f'It is {number * 7 % 5}, no. {number}'


def number_in(text: str) -> int:
  """Returns which example a question is of."""
  return int(re.search(r'question (\d+):', text)[1])


def prediction(number: int) -> str:
  """Returns the answer of a model that is right in half of the cases."""
  return answer(number) if number % 2 else answer(number)[:-3] + '???'


def score(number: int) -> np.float32:
  """Returns the score of a model for an example's target."""
  return np.float32(-1.5 - number / 7)


def postprocess(text: str, example=None, is_target=False):
  """Returns a target with its question, and a prediction in small letters."""
  if is_target:
    return text.lower(), example['inputs_pretokenized'].decode()
  return text.lower()


def accuracy(targets, predictions):
  """A metric of predictions that depends on which examples are right."""
  right = [t == p for (t, _), p in zip(targets, predictions, strict=True)]
  return {
    'accuracy': float(np.mean(right)),
    'places': float(np.dot(right, np.arange(len(right)))),
  }


def edits(targets, predictions):
  """Another metric of predictions, with values of SeqIO."""
  scalar = lingvo_runtime.seqio().metrics.Scalar
  wrong = [
    sum(a != b for a, b in zip(t, p, strict=False))
    for (t, _), p in zip(targets, predictions, strict=True)
  ]
  return {'edits': scalar(sum(wrong)), 'examples': scalar(len(wrong))}


def mean_score(targets, scores):
  """A metric of scores that depends on their order."""
  numbers = [number_in(question) for _, question in targets]
  return {
    'mean_score': float(np.mean(scores)),
    'weighted': float(np.dot(scores, numbers)),
  }


def broken(targets, predictions):
  """A metric that fails."""
  raise ZeroDivisionError('broken on purpose')


def broken_score(targets, scores):
  """A metric of scores that fails."""
  raise KeyError('broken on purpose')


def add(name: str, count: int = 11, **fields):
  """Registers a task, once.

  Args:
    name: the task's.
    count: its number of examples.
    **fields: further ones of a SeqIO task.
  """
  seqio = lingvo_runtime.seqio()
  if name in seqio.TaskRegistry.names():
    return seqio.TaskRegistry.get(name)
  feature = seqio.Feature(seqio.ByteVocabulary())
  return seqio.TaskRegistry.add(
    name,
    source=seqio.FunctionDataSource(
      functools.partial(_examples, count), splits=SPLITS
    ),
    preprocessors=[
      functools.partial(seqio.preprocessors.tokenize, copy_pretokenized=True),
      seqio.preprocessors.append_eos,
    ],
    output_features={'inputs': feature, 'targets': feature},
    postprocess_fn=postprocess,
    **fields,
  )


def mixture(name: str, tasks):
  """Registers a mixture of tasks, once."""
  seqio = lingvo_runtime.seqio()
  if name in seqio.MixtureRegistry.names():
    return seqio.MixtureRegistry.get(name)
  return seqio.MixtureRegistry.add(
    name, [task.name for task in tasks], default_rate=1.0
  )


def _examples(count, split, shuffle_files, seed=None):
  del split, shuffle_files, seed
  tf = lingvo_runtime.tensorflow()
  texts = {
    'inputs': [f'question {i}:' for i in range(count)],
    'targets': [answer(i) for i in range(count)],
  }
  return tf.data.Dataset.from_tensor_slices(
    {name: tf.constant(x, tf.string) for name, x in texts.items()}
  )
