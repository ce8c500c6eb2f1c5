"""What the tests of the Lingvo inputs share: small data, real generators."""

import itertools

import numpy as np

from adaptors import lingvo_runtime


def write_lines(path, lines) -> str:
  """Writes a text file; returns its Lingvo pattern."""
  path.write_text(''.join(f'{line}\n' for line in lines))
  return f'text:{path}'


def unique_lines(count: int, letters: int = 6) -> list[str]:
  """Returns different lines of `letters` and more characters, one word each."""
  return [f'{i:0{letters}d}' for i in range(count)]


def mixed_lines(count: int) -> list[str]:
  """Returns different lines of 4 to 33 characters, one word each."""
  return [f'{i:03d}' + 'x' * (1 + (i * 7) % 30) for i in range(count)]


def lm_params(pattern, **fields):
  """Returns Params of the stock LmInput with three buckets."""
  generators = lingvo_runtime.module('lingvo.tasks.lm.input_generator')
  return _with_buckets(generators.LmInput.Params(), pattern, fields)


def letters_params(pattern, **fields):
  """Returns Params of an LmInput whose bucket key is the number of letters.

  The stock LmInput means to count them, but counts words on today's TensorFlow.
  """
  return _with_buckets(_letters_class().Params(), pattern, fields)


def _with_buckets(params, pattern, fields):
  return params.Set(
    **{
      'file_pattern': pattern,
      'file_random_seed': 0,
      'file_buffer_size': 64,
      'file_parallelism': 1,
      'bucket_upper_bound': [10, 20, 40],
      'bucket_batch_limit': [4, 4, 4],
      'target_max_length': 48,
      **fields,
    }
  )


def _letters_class():
  tf = lingvo_runtime.module('tensorflow')
  generic = lingvo_runtime.module('lingvo.core.generic_input')
  generators = lingvo_runtime.module('lingvo.tasks.lm.input_generator')

  class LettersInput(generators.LmInput):
    def _DataSourceFromFilePattern(self, file_pattern, **unused):  # noqa: N802
      def read(line):
        return [line, tf.constant(1)], tf.strings.length(line)

      features, keys = generic.GenericInput(
        file_pattern=file_pattern, processor=read, **self.CommonInputOpArgs()
      )
      batch = self.BuildInputBatch(4, features, keys)
      batch.text = features[0]
      return batch

  return LettersInput


def texts(batch, *, weighted: bool = False) -> list[str]:
  """Returns the lines in a batch of labels, read as Lingvo's ASCII tokens.

  Args:
    batch: a batch with `labels` and `paddings`.
    weighted: whether only rows of weight 1 count.
  """
  lines = []
  for row, line in enumerate(batch.labels):
    if weighted and batch.eval_sample_weights[row] == 0:
      continue
    real = line[batch.paddings[row] < 0.5]
    lines.append(' '.join(str(t) for t in real))
  return lines


def drain(adaptor) -> list:
  """Returns all batches up to StopIteration."""
  batches = []
  while True:
    try:
      batches.append(adaptor.get_next())
    except StopIteration:
      return batches


def direct_batches(params, count: int) -> list:
  """Returns the first batches of a generator, driven by hand in order."""
  tf = lingvo_runtime.module('tensorflow')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  graph = tf.Graph()
  params = params.Copy().Set(repeat_count=1)
  with lingvo_runtime.cluster(require_sequential_input_order=True):
    py_utils.SetEagerMode(False, test_mode=True)
    try:
      with graph.as_default():
        batch = params.Instantiate().GetPreprocessedInputBatch()
    finally:
      py_utils.SetEagerMode(True, test_mode=True)
  with tf.compat.v1.Session(graph=graph) as session:
    return [session.run(dict(batch)) for _ in range(count)]


def assert_same(batches, others):
  """Asserts that two lists of batches are equal, leaf by leaf."""
  assert len(batches) == len(others)
  for a, b in zip(batches, others, strict=True):
    assert sorted(a) == sorted(b)
    for key in a:
      np.testing.assert_array_equal(a[key], b[key])


def tf_data_params(dataset):
  """Returns Params of a generator of the `tf.data` set that `dataset` makes."""
  generators = lingvo_runtime.module('lingvo.core.base_input_generator')
  sources = lingvo_runtime.module('lingvo.core.datasource')

  class Source(sources.TFDatasetSource):
    def GetDataset(self):  # noqa: N802
      return dataset()

  return generators.BaseInputGenerator.Params().Set(
    file_datasource=Source.Params()
  )


def numbers(count, **options):
  """Returns Params of a tf.data input of the numbers below `count`.

  Args:
    count: how many numbers.
    **options: `weights` adds eval_sample_weights, `scalar` a leaf without an
      axis, `repeat` makes it endless, `generated` hides that from tf.data,
      `threads` is how many threads of its own it has; None for none. `batch`
      is how many numbers a batch of its own has; 5 by default.
  """
  tf = lingvo_runtime.module('tensorflow')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')

  def example(x):
    fields = py_utils.NestedMap(x=x)
    if options.get('weights'):
      fields.eval_sample_weights = tf.cast(x, tf.float32) / 2
    if options.get('scalar'):
      fields.step = tf.constant(1)
    return fields

  def dataset():
    numbers = tf.data.Dataset.range(count)
    if options.get('generated'):
      # Of a Python generator tf.data does not know when it ends.
      made = itertools.count() if options.get('repeat') else range(count)
      numbers = tf.data.Dataset.from_generator(
        lambda: (i % count for i in made), tf.int64, []
      )
    elif options.get('repeat'):
      numbers = numbers.repeat()
    batches = numbers.batch(options.get('batch', 5))
    return batches.map(example, options.get('threads'))

  return tf_data_params(dataset)
