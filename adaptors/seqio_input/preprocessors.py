"""Preprocessors of SeqIO tasks for language models without document borders.

They do what `t5.data.preprocessors` does under the same names; the package t5
is not needed. SeqIO calls them with a `tf.data.Dataset`, and with
`sequence_length` if they have that argument.

Shapes: n tokens of an example.
"""

from collections.abc import Mapping
from typing import Any

from adaptors import lingvo_runtime
from pax_compat import errors

# The id of padding.
_PADDING = 0


def reduce_concat_tokens(
  dataset: Any, feature_key: str = 'targets', batch_size: int = 128
) -> Any:
  """Concatenates the tokens of up to `batch_size` successive examples.

  Tokens with id 0 (padding) are dropped, and all features but one.

  >>> def show(dataset):
  ...   for example in dataset.as_numpy_iterator():
  ...     print(example['targets'].tolist())
  >>> tf = lingvo_runtime.tensorflow()
  >>> rows = tf.ragged.constant([[5, 6, 0], [7], [8, 9]])
  >>> dataset = tf.data.Dataset.from_tensor_slices({'targets': rows})
  >>> show(reduce_concat_tokens(dataset, batch_size=2))
  [5, 6, 7]
  [8, 9]

  Args:
    dataset: `tf.data.Dataset` of examples with the feature [n].
    feature_key: name of the feature.
    batch_size: maximum number of examples that are concatenated.

  Returns:
    A dataset with this feature only.
  """
  tf = lingvo_runtime.tensorflow()

  def select(example):
    return {feature_key: example[feature_key]}

  def concatenate(examples):
    tokens = examples[feature_key].flat_values
    return {feature_key: tf.boolean_mask(tokens, tokens != _PADDING)}

  return _mapped(_mapped(dataset, select).ragged_batch(batch_size), concatenate)


def split_tokens_to_targets_length(
  dataset: Any,
  sequence_length: Mapping[str, int],
  output_features: Mapping[str, Any],
) -> Any:
  """Splits the targets of each example into examples of the targets' length.

  The last one of an example may be shorter. Empty examples and other features
  are dropped. Features that get an EOS later are one token shorter.

  >>> seqio, tf = lingvo_runtime.seqio(), lingvo_runtime.tensorflow()
  >>> whole = tf.data.Dataset.from_tensors({'targets': [5, 6, 7, 8, 9]})
  >>> feature = seqio.Feature(seqio.ByteVocabulary(), add_eos=False)
  >>> rows = split_tokens_to_targets_length(
  ...   whole, {'targets': 2}, {'targets': feature}
  ... )
  >>> [row['targets'].tolist() for row in rows.as_numpy_iterator()]
  [[5, 6], [7, 8], [9]]

  Args:
    dataset: `tf.data.Dataset` of examples with the feature `targets` [n].
    sequence_length: the length of `targets`.
    output_features: the `seqio.Feature` of `targets`.

  Raises:
    UserError: the length of `targets` is not given, or too small.
  """
  length = (sequence_length or {}).get('targets', 0)
  length -= int(output_features['targets'].add_eos)
  if length < 1:
    raise errors.UserError(
      'split_tokens_to_targets_length: the length of targets is missing in'
      f' {sequence_length}; expected'
      " task_feature_lengths={'targets': 1024} or another length"
    )
  tf = lingvo_runtime.tensorflow()

  def split(example):
    tokens = example['targets']
    starts = tf.range(0, tf.size(tokens), length)
    return _mapped(
      tf.data.Dataset.from_tensor_slices(starts),
      lambda start: {'targets': tokens[start : start + length]},
    )

  return dataset.flat_map(_plain(split))


def _mapped(dataset: Any, function: Any) -> Any:
  tf = lingvo_runtime.tensorflow()
  return dataset.map(_plain(function), num_parallel_calls=tf.data.AUTOTUNE)


def _plain(function: Any) -> Any:
  """Returns a function that AutoGraph does not convert."""
  tf = lingvo_runtime.tensorflow()
  return tf.autograph.experimental.do_not_convert(function)
