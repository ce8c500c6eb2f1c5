"""SeqIO tasks for tests, with distinct examples."""

import contextlib
import functools
import json
import pathlib
from collections.abc import Callable

import numpy as np

from adaptors import lingvo_runtime
from adaptors.seqio_input import input_adaptor
from adaptors.seqio_input.reading import host_rows

LENGTH = 8


@contextlib.contextmanager
def common_tasks():
  """Has the tasks `ten` and `seven`, and `both` with seven twice as often."""
  seqio = lingvo_runtime.seqio()
  register('ten', 10)
  register('seven', 7)
  seqio.MixtureRegistry.add('both', [('ten', 1.0), ('seven', 2.0)])
  yield
  seqio.MixtureRegistry.remove('both')


def answers(count: int) -> list[str]:
  """Returns the targets of a task's first examples."""
  return [f'a{number}' for number in range(count)]


def register(
  name: str,
  count: int = 10,
  *,
  source=None,
  preprocessors: list[Callable] | None = None,
  **options,
):
  """Registers and returns a task of the strings `a0`, `a1` and so on.

  Args:
    name: of the task.
    count: number of strings in each of its two splits.
    source: in place of these texts.
    preprocessors: in place of those that make tokens.
    **options: of `seqio.Task`.
  """
  seqio = lingvo_runtime.seqio()
  vocabulary = seqio.ByteVocabulary()
  seqio.TaskRegistry.remove(name)
  return seqio.TaskRegistry.add(
    name,
    source=source
    or seqio.FunctionDataSource(
      functools.partial(_texts, count=count), splits=['train', 'validation']
    ),
    preprocessors=preprocessors or [seqio.preprocessors.tokenize],
    output_features={
      'inputs': seqio.Feature(vocabulary, add_eos=False),
      'targets': seqio.Feature(vocabulary),
    },
    **{'metric_fns': [], **options},
  )


def _texts(split: str, shuffle_files: bool, seed=None, *, count=10):
  del split, shuffle_files, seed
  tf = lingvo_runtime.tensorflow()
  numbers = tf.strings.as_string(tf.range(count))
  return tf.data.Dataset.from_tensor_slices(
    {'inputs': 'q' + numbers, 'targets': 'a' + numbers}
  )


def register_lines(name: str, folder: pathlib.Path, files: int, lines: int):
  """Returns a task of some text files, each of some lines."""
  seqio, tf = lingvo_runtime.seqio(), lingvo_runtime.tensorflow()
  for number in range(files):
    texts = [f'a{number * lines + line}\n' for line in range(lines)]
    (folder / f'{number}.txt').write_text(''.join(texts))

  def both(data):
    return data.map(lambda x: {'inputs': x, 'targets': tf.identity(x)})

  return register(
    name,
    source=seqio.TextLineDataSource({'train': str(folder / '*.txt')}),
    preprocessors=[both, seqio.preprocessors.tokenize],
  )


def write_cache(folder: pathlib.Path, task: str, examples: list[list[int]]):
  """Writes a task's examples as SeqIO's `cache_tasks_main` does."""
  tf = lingvo_runtime.tensorflow()
  folder = folder / task
  folder.mkdir(parents=True)
  ints = {'shape': [None], 'dtype': 'int32'}
  (folder / 'info.train.json').write_text(
    json.dumps(
      {
        'num_shards': 1,
        'features': {'inputs': ints, 'targets': ints},
        'seqio_version': '0.0.20',
      }
    )
  )
  stats = {'examples': len(examples)}
  (folder / 'stats.train.json').write_text(json.dumps(stats))
  path = folder / 'train.tfrecord-00000-of-00001'
  with tf.io.TFRecordWriter(str(path)) as writer:
    for tokens in examples:
      values = tf.train.Feature(int64_list=tf.train.Int64List(value=tokens))
      features = tf.train.Features(
        feature={'inputs': values, 'targets': values}
      )
      example = tf.train.Example(features=features)
      writer.write(example.SerializeToString())
  (folder / 'COMPLETED').touch()


def converted(data, task_feature_lengths):
  """Converts examples, with fewer steps to compile than a language model's."""
  tf = lingvo_runtime.tensorflow()
  length = task_feature_lengths['targets']

  def convert(example):
    tokens = example['targets'][:length]
    weights = tf.pad(tf.ones_like(tokens), [[0, length - tf.size(tokens)]])
    return {
      'labels': tf.ensure_shape(
        tf.pad(tokens, [[0, length - tf.size(tokens)]]), [length]
      ),
      'weights': tf.cast(weights, tf.float32),
      'paddings': 1 - tf.cast(weights, tf.float32),
    }

  return data.map(tf.autograph.experimental.do_not_convert(convert))


def config(task: str | None, **fields):
  """Returns the config of an input of a task; of training by default."""
  return input_adaptor.SeqIOInput.config(
    **{
      'name': 'seqio',
      'mixture_name': task,
      'split_name': 'train',
      'batch_size': 2,
      'task_feature_lengths': {'targets': LENGTH},
      'feature_converter': converted,
      'is_training': True,
      **fields,
    }
  )


def eval_config(task: str, **fields):
  """Returns the config of an input that gives a task's data once."""
  return config(
    task,
    **{
      'is_training': False,
      'split_name': 'validation',
      'reset_for_eval': True,
      **fields,
    },
  )


def hosts(params, count: int) -> list:
  """Returns the inputs of all hosts."""
  return [
    params.Instantiate(num_infeed_hosts=count, infeed_host_index=host)
    for host in range(count)
  ]


def read(data, batches: int | None = None) -> list:
  """Returns the next batches; None for all that are left."""
  found = []
  while batches is None or len(found) < batches:
    try:
      found.append(data.get_next())
    except StopIteration:
      break
  return found


def texts(data, batches: list) -> list[str]:
  """Returns the targets of the examples that count."""
  found = []
  for batch in batches:
    rows = batch.labels[batch.eval_sample_weights > 0]
    found += data.ids_to_strings(rows, np.full(len(rows), LENGTH))
  return found


def global_texts(inputs: list, batches: int | None = None) -> list[str]:
  """Returns the targets of all hosts' examples in the order of the data."""
  read_by = [read(data, batches) for data in inputs]
  assert len({len(x) for x in read_by}) == 1, 'hosts have other numbers'
  return [
    text
    for global_batch in zip(*read_by, strict=True)
    for data, batch in zip(inputs, global_batch, strict=True)
    for text in texts(data, [batch])
  ]


def numbers(batches: list) -> list[int]:
  """Returns the indices of the examples that count."""
  return [
    int(number)
    for batch in batches
    for number in batch[host_rows.INDEX][batch.eval_sample_weights > 0]
  ]
