"""Files of records, good and damaged, and a generator of tf.Examples."""

from adaptors import lingvo_runtime

COUNT = 20


def example(number: int, **texts: bytes) -> bytes:
  """Returns a tf.Example with the feature `n`, and others of bytes."""
  tf = lingvo_runtime.module('tensorflow')
  features = {
    'n': tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
  }
  for name, text in texts.items():
    value = tf.train.BytesList(value=[text])
    features[name] = tf.train.Feature(bytes_list=value)
  made = tf.train.Features(feature=features)
  return tf.train.Example(features=made).SerializeToString()


def write(path, records=None, compression: str = '') -> str:
  """Writes a TFRecord file, of `COUNT` examples by default."""
  tf = lingvo_runtime.module('tensorflow')
  if records is None:
    records = [example(i) for i in range(COUNT)]
  with tf.io.TFRecordWriter(str(path), compression) as writer:
    for record in records:
      writer.write(record)
  return str(path)


def damaged(path, kind: str) -> str:
  """Writes examples of one length of which the sixth is damaged.

  Args:
    path: the file.
    kind: 'data' for a wrong byte of its data, 'length' for one of its length,
      'length checksum', or 'cut' where the file ends within it, 'cut header'
      where it ends within the length, and 'cut checksum' shortly before its
      end.
  """
  write(path)
  whole = path.read_bytes()
  frame = len(whole) // COUNT
  start = 5 * frame
  cuts = {'cut': 20, 'cut header': 6, 'cut checksum': frame - 2}
  if kind in cuts:
    path.write_bytes(whole[: start + cuts[kind]])
  else:
    at = start + {'data': 15, 'length': 2, 'length checksum': 9}[kind]
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 64]) + whole[at + 1 :])
  return str(path)


def params(pattern: str, **fields):
  """Returns Params of a generator that gives `n`, in order and once.

  With `image=True` examples have an image of 2 x 2, too. With `prefix` it is
  put in front of the pattern by the generator.
  """
  image, prefix = fields.pop('image', False), fields.pop('prefix', '')
  return (
    _generator(image, prefix)
    .Params()
    .Set(
      file_pattern=pattern,
      file_random_seed=0,
      file_buffer_size=8,
      file_parallelism=1,
      bucket_upper_bound=[10],
      bucket_batch_limit=[5],
      repeat_count=1,
      **fields,
    )
  )


def _generator(image: bool, prefix: str):
  tf = lingvo_runtime.module('tensorflow')
  generic = lingvo_runtime.module('lingvo.core.generic_input')
  generators = lingvo_runtime.module('lingvo.core.base_input_generator')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  spec = {'n': tf.io.FixedLenFeature([], tf.int64)}
  if image:
    spec['image'] = tf.io.FixedLenFeature([], tf.string)

  def read(record):
    features = tf.io.parse_single_example(record, spec)
    if image:
      pixels = tf.io.decode_png(features['image'])
      features['n'] += tf.cast(tf.reduce_sum(pixels), tf.int64)
    return [features['n']], tf.constant(1)

  class Numbers(generators.BaseSequenceInputGenerator):
    def _DataSourceFromFilePattern(self, file_pattern, **unused):  # noqa: N802
      features, _ = generic.GenericInput(
        file_pattern=prefix + file_pattern,
        processor=read,
        **self.CommonInputOpArgs(),
      )
      return py_utils.NestedMap(n=features[0])

  return Numbers


def png() -> bytes:
  """Returns a black image of 2 x 2."""
  tf = lingvo_runtime.module('tensorflow')
  return tf.io.encode_png(tf.zeros([2, 2, 1], tf.uint8)).numpy()
