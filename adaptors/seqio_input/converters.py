"""Feature converters: from the features of a SeqIO task to model inputs.

They are called as SeqIO's own converters, with a `tf.data.Dataset` and the
lengths of its features, and contain only settings: SeqIO is imported at the
first call.

Shapes: T tokens of an example, inputs and targets together.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from adaptors import lingvo_runtime
from pax_compat import config as config_lib
from pax_compat import errors
from pax_compat.nested_map import NestedMap

# Features with task ids, and the sequence (`src`, `tgt`) that gets them.
_TASK_IDS = (
  ('src_task_ids', 'src'),
  ('tgt_task_ids', 'tgt'),
  ('task_ids', 'src'),
  ('task_ids', 'tgt'),
)


# Methods of SeqIO's converters, which those of Pax are; never called here.
_OF_SEQIO = (
  '_convert_example',
  '_convert_features',
  '_pack_or_pad',
  'get_model_feature_lengths',
)


class Converter(config_lib.Configurable):
  """Base of the converters."""

  # The features whose lengths are required.
  NEEDS = ()

  def __init_subclass__(cls, **kwargs):
    super().__init_subclass__(**kwargs)
    for name in _OF_SEQIO:
      if name in vars(cls):
        raise errors.UserError(
          f'{cls.__qualname__}.{name} would never be called; define'
          ' model_fields, which has the features of an example after SeqIO has'
          ' converted it, or a converter of SeqIO'
        )

  def __call__(self, ds: Any, task_feature_lengths: Mapping[str, int]) -> Any:
    """Returns the converted dataset.

    Args:
      ds: `tf.data.Dataset` of the task's examples.
      task_feature_lengths: length of each feature.
    """
    raise NotImplementedError(type(self).__name__)

  @property
  def passthrough(self) -> tuple[str, ...]:
    """Names of the features that are not converted."""
    return ()

  def specs(self, task_feature_lengths: Mapping[str, int]) -> Any:
    """Returns shapes and dtypes of the fields of an example, without data.

    Args:
      task_feature_lengths: length of each feature.

    Returns:
      A `jax.ShapeDtypeStruct` for each field; None, the default, if they depend
      on the data.
    """
    del task_feature_lengths
    return None

  def model_fields(self, features: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a batch, from converted features of an example."""
    raise NotImplementedError(type(self).__name__)

  def _to_pax(self, b: Mapping[str, Any]) -> NestedMap:
    """Returns `model_fields`; the method that subclasses of Pax's override."""
    return NestedMap.FromNestedDict(self.model_fields(b))

  def _with_model_fields(self, ds: Any) -> Any:
    return _mapped(
      ds, lambda b: NestedMap.FromNestedDict(self._to_pax(b)).ToNestedDict()
    )

  def _refuse_custom_ops(self, use_custom_ops: bool):
    self.check(
      not use_custom_ops,
      'use_custom_packing_ops is True; expected False, as the tensor2tensor ops'
      " for it are not part of TensorFlow. `pack` uses SeqIO's own",
    )


class _AlreadyConverted(Converter):
  """A converter of examples that SeqIO's converter has converted already."""

  NEEDS = ()

  def __post_init__(self):
    super().__post_init__()
    self.check(
      not self.pack,
      'pack is True; expected False, as the examples are packed already',
    )

  def __call__(self, ds: Any, task_feature_lengths: Mapping[str, int]) -> Any:
    """See the base class."""
    del task_feature_lengths
    return self._with_model_fields(ds)


class LanguageModelFeatures(Converter):
  """Makes one sequence of an example, for a language model.

  It is the targets, after the inputs if `task_feature_lengths` has `inputs`.
  Of the inputs [7, 8, 5] and the targets [3, 9, 1], with lengths of 4 each:

  >>> def show(converter, example, **lengths):
  ...   tf = lingvo_runtime.tensorflow()
  ...   for row in converter(tf.data.Dataset.from_tensors(example), lengths):
  ...     for name, x in sorted(row.items()):
  ...       print(name.ljust(16), x.numpy().astype(int))
  >>> example = {'inputs': [7, 8, 5], 'targets': [3, 9, 1]}
  >>> show(LanguageModelFeatures(), example, inputs=4, targets=4)
  ids              [0 7 8 5 3 9 1 0]
  inputs_indicator [1 1 1 1 0 0 0 0]
  labels           [7 8 5 3 9 1 0 0]
  paddings         [0 0 0 0 0 0 1 1]
  segment_ids      [1 1 1 1 1 1 0 0]
  segment_pos      [0 1 2 3 4 5 0 0]
  weights          [1 1 1 1 1 1 0 0]

    * `ids`: int32, the token before each position, which the model reads.
    * `labels`: int32, the token at each position, which it predicts.
    * `paddings`: float32, 1 at padding.
    * `weights`: float32, weight of the label in the loss: here 1 for all
      tokens; with `weights_on_targets_only=True` [0 0 0 1 1 1 0 0].
    * `inputs_indicator`: int32, 1 where the id or the label is a token of the
      inputs, so at one position more than there are inputs (a prefix LM attends
      in both directions there). Only if there are inputs.
    * `segment_ids`: int32, number of the example in the row, from 1 on; 0 at
      padding.
    * `segment_pos`: int32, position in that example, from 0 on.

  With `reverse_bos_padding` the model reads the token at each position and
  predicts the next one; the last token of an example is then padding:

  >>> converter = LanguageModelFeatures(reverse_bos_padding=True)
  >>> show(converter, example, inputs=4, targets=4)
  ids              [7 8 5 3 9 1 0 0]
  inputs_indicator [1 1 1 1 0 0 0 0]
  labels           [8 5 3 9 1 0 0 1]
  paddings         [0 0 0 0 0 1 1 1]
  segment_ids      [1 1 1 1 1 1 0 0]
  segment_pos      [0 1 2 3 4 5 0 0]
  weights          [1 1 1 1 1 0 0 0]

  With `pack` several examples share a row. The examples [4, 1] and [6, 9, 1],
  without inputs, become:

      ids                0  4  0  6  9  0  0  0
      labels             4  1  6  9  1  0  0  0
      segment_ids        1  1  2  2  2  0  0  0
      segment_pos        0  1  0  1  2  0  0  0

  Attributes:
    pack: whether several examples share a row.
    use_custom_packing_ops: must be False.
    weights_on_targets_only: which labels have weight 1. None: all tokens but
      negative ids, which are read (as their absolute values) and not predicted.
      True: tokens of the targets, but negative ids. False: all tokens.
    apply_length_check: whether a feature longer than its length is an error.
    bos_id: the id before the first token.
    reverse_bos_padding: see above.
    eos_id: the last label of a row, with `reverse_bos_padding`.
    labels_cross_segments: whether, with `reverse_bos_padding`, the last token
      of an example predicts the first one of the next example in the row, as
      in Pax. Otherwise it is padding.
    target_has_suffix: whether only tokens of the feature `suffixes`, which
      follow the targets, have weight 1.
    passthrough_features: specs (`seqio.FeatureConverter.FeatureSpec`) of
      features that are not converted, by name.
  """

  NEEDS = ('targets',)

  pack: bool = False
  use_custom_packing_ops: bool = False
  weights_on_targets_only: bool | None = None
  apply_length_check: bool = True
  bos_id: int = 0
  reverse_bos_padding: bool = False
  eos_id: int = 1
  labels_cross_segments: bool = False
  target_has_suffix: bool = False
  passthrough_features: Mapping[str, Any] | None = None

  def __post_init__(self):
    self._refuse_custom_ops(self.use_custom_packing_ops)
    self.check(
      not (self.pack and self.passthrough_features),
      'pack is True with passthrough_features; expected one of them, as packed'
      ' rows hold several examples',
    )

  @property
  def passthrough(self) -> tuple[str, ...]:
    """Names of the features that are not converted."""
    return tuple(self.passthrough_features or ())

  def __call__(self, ds: Any, task_feature_lengths: Mapping[str, int]) -> Any:
    """See the base class."""
    self.check(
      not self.target_has_suffix or 'suffixes' in task_feature_lengths,
      'target_has_suffix is True, but task_feature_lengths has no suffixes, but'
      f' only {", ".join(task_feature_lengths)}',
    )
    converter = lingvo_runtime.seqio().DecoderFeatureConverter(
      loss_on_targets_only=True,
      pack=self.pack,
      apply_length_check=self.apply_length_check,
      bos_id=self.bos_id,
      passthrough_features=self.passthrough_features,
    )
    return self._with_model_fields(converter(ds, task_feature_lengths))

  def specs(self, task_feature_lengths: Mapping[str, int]) -> Any:
    """See the base class."""
    if self.passthrough or type(self) is not LanguageModelFeatures:
      return None
    has_inputs = 'inputs' in task_feature_lengths
    length = task_feature_lengths['targets']
    length += task_feature_lengths['inputs'] if has_inputs else 0
    ids = jax.ShapeDtypeStruct([length], np.int32)
    numbers = jax.ShapeDtypeStruct([length], np.float32)
    fields = dict.fromkeys(('ids', 'labels', 'segment_ids', 'segment_pos'), ids)
    if has_inputs:
      fields['inputs_indicator'] = ids
    return fields | {'weights': numbers, 'paddings': numbers}

  def model_fields(self, features: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of an example with decoder features [T]."""
    tf = lingvo_runtime.tensorflow()
    tokens = features['decoder_target_tokens']
    is_target = features['decoder_loss_weights'] > 0
    is_token, fields = is_target, {}
    if 'decoder_causal_attention' in features:
      fields['inputs_indicator'] = features['decoder_causal_attention']
      is_token |= fields['inputs_indicator'] > 0
    counts = is_token
    if self.weights_on_targets_only is not False:
      counts &= tokens >= 0
    if self.weights_on_targets_only:
      counts &= is_target
    weights = tf.cast(counts, tf.float32)
    if self.target_has_suffix:
      weights *= tf.cast(features['target_suffix_weights'], tf.float32)
    fields |= {
      'ids': tf.abs(features['decoder_input_tokens']),
      'labels': tf.abs(tokens),
      'weights': weights,
      'paddings': 1.0 - tf.cast(is_token, tf.float32),
      **_segments(features, 'decoder', is_token),
      **{name: features[name] for name in self.passthrough},
    }
    return self._shifted(fields) if self.reverse_bos_padding else fields

  def _shifted(self, fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields with `ids` that begin with the first token.

    Unless `labels_cross_segments`, the last token of a segment is padding: the
    next token in the row is not its label.
    """
    tf = lingvo_runtime.tensorflow()
    segments = fields['segment_ids']
    following = tf.concat([segments[1:], segments[-1:]], axis=0)
    is_last = (segments != following) & (following > 0)
    if self.labels_cross_segments:
      is_last = tf.zeros_like(is_last)

    def next_of(x, last):
      last = tf.cast(last, x.dtype)
      return tf.where(is_last, last, tf.concat([x[1:], [last]], axis=0))

    return fields | {
      'ids': fields['labels'],
      'labels': next_of(fields['labels'], self.eos_id),
      'weights': next_of(fields['weights'], 0),
      'paddings': next_of(fields['paddings'], 1),
    }


class PackedLanguageModelFeatures(_AlreadyConverted, LanguageModelFeatures):
  """Takes examples that already have decoder features, packed or not.

  These are SeqIO's `decoder_input_tokens`, `decoder_target_tokens` and
  `decoder_loss_weights`, with `decoder_segment_ids` and `decoder_positions` if
  they are packed. Batches are those of `LanguageModelFeatures`.
  """


class SequenceModelFeatures(Converter):
  """Makes a source and a target sequence, for an encoder and a decoder.

  Batches have them as `src` and `tgt`, each with `ids`, `paddings`,
  `segment_ids` and `segment_pos` as of `LanguageModelFeatures`, and `tgt` also
  with `labels` and `weights`.

  Attributes:
    pack: whether several examples share a row.
    use_custom_packing_ops: must be False.
    bos_id: the id before the first token of the target.
  """

  NEEDS = ('inputs', 'targets')

  pack: bool = False
  use_custom_packing_ops: bool = False
  bos_id: int = 0

  def __post_init__(self):
    self._refuse_custom_ops(self.use_custom_packing_ops)

  def __call__(self, ds: Any, task_feature_lengths: Mapping[str, int]) -> Any:
    """See the base class."""
    converter = lingvo_runtime.seqio().EncDecFeatureConverter(
      pack=self.pack, bos_id=self.bos_id
    )
    return self._with_model_fields(converter(ds, task_feature_lengths))

  def model_fields(self, features: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of an example with encoder and decoder features."""
    tf = lingvo_runtime.tensorflow()
    source = features['encoder_input_tokens']
    weights = tf.cast(features['decoder_loss_weights'], tf.float32)
    fields = {
      'src': {
        'ids': source,
        'paddings': 1.0 - tf.cast(source != 0, tf.float32),
        **_segments(features, 'encoder', source != 0),
      },
      'tgt': {
        'ids': features['decoder_input_tokens'],
        'labels': features['decoder_target_tokens'],
        'weights': weights,
        'paddings': 1.0 - weights,
        **_segments(features, 'decoder', weights > 0),
      },
    }
    for name, coder in _TASK_IDS:
      if name in features:
        fields[coder]['task_ids'] = features[name]
    return fields


class SequenceModelFeaturesWithTaskInfo(SequenceModelFeatures):
  """Keeps task ids too, for models that route by task.

  The features `src_task_ids` and `tgt_task_ids` become `task_ids` of `src` and
  `tgt`; the feature `task_ids` becomes that of both. Each is optional. They are
  lists, and `task_feature_lengths` must have their lengths. With `pack` those
  of the examples in a row follow one another, as their tokens do.
  """

  @property
  def passthrough(self) -> tuple[str, ...]:
    """Names of the features that are not converted."""
    return tuple({name: None for name, _ in _TASK_IDS})

  def __call__(self, ds: Any, task_feature_lengths: Mapping[str, int]) -> Any:
    """See the base class."""
    seqio = lingvo_runtime.seqio()
    found = {
      name: spec
      for name, spec in ds.element_spec.items()
      if name in self.passthrough
    }
    for name, spec in found.items():
      self.check(
        spec.shape.rank == 1 and name in task_feature_lengths,
        f'the feature {name!r} has the shape {spec.shape} and the length'
        f' {task_feature_lengths.get(name)}; expected a list, and its length in'
        ' task_feature_lengths',
      )
    specs = {
      name: seqio.FeatureConverter.FeatureSpec(
        dtype=spec.dtype, rank=spec.shape.rank
      )
      for name, spec in found.items()
    }
    converter = _with_features(seqio.EncDecFeatureConverter, specs)
    return self._with_model_fields(
      converter(pack=self.pack, bos_id=self.bos_id)(ds, task_feature_lengths)
    )


class PackedSequenceModelFeatures(_AlreadyConverted, SequenceModelFeatures):
  """Takes examples that already have encoder and decoder features.

  These are SeqIO's `encoder_input_tokens`, `decoder_...` and so on, packed if
  there are `encoder_segment_ids`. Batches are those of
  `SequenceModelFeatures`.
  """


class RemoveProvenance(Converter):
  """Drops the features named `provenance...`; the others are not changed."""

  def __call__(self, ds: Any, task_feature_lengths: Mapping[str, int]) -> Any:
    """See the base class."""
    del task_feature_lengths
    return _mapped(ds, _without_provenance)


class UnflattenAndRemoveProvenance(Converter):
  """As `RemoveProvenance`; a feature `a/b` first becomes field `b` of `a`."""

  def __call__(self, ds: Any, task_feature_lengths: Mapping[str, int]) -> Any:
    """See the base class."""
    del task_feature_lengths

    def convert(features):
      return _without_provenance(
        lingvo_runtime.seqio().unflatten_dict(features)
      )

    return _mapped(ds, convert)


def built(converter: Any) -> Callable:
  """Returns a converter, built if it is a config.

  Raises:
    UserError: it is not a converter.
  """
  if isinstance(converter, config_lib.Config):
    converter = converter.Instantiate()
  if not callable(converter):
    raise errors.UserError(
      f'feature_converter is {converter!r}; expected a converter of'
      ' adaptors.seqio_input, as LanguageModelFeatures(pack=True), or one of'
      ' SeqIO'
    )
  return converter


def _with_features(base: type, specs: Mapping[str, Any]) -> type:
  """Returns a converter of SeqIO that keeps further features, packed or not.

  SeqIO's `passthrough_features` are not packed.
  """

  class WithFeatures(base):
    """Pads, or packs, these features as tokens."""

    TASK_FEATURES = {**base.TASK_FEATURES, **specs}
    MODEL_FEATURES = {**base.MODEL_FEATURES, **specs}

    def _convert_example(self, features):
      kept = {name: features[name] for name in specs}
      return {**super()._convert_example(features), **kept}

    def get_model_feature_lengths(self, task_feature_lengths):
      kept = {name: task_feature_lengths[name] for name in specs}
      return {**super().get_model_feature_lengths(task_feature_lengths), **kept}

  return WithFeatures


def passthrough_of(converter: Any) -> tuple[str, ...]:
  """Returns the names of the features that a converter does not convert."""
  if isinstance(converter, Converter):
    return converter.passthrough
  return tuple(getattr(converter, '_passthrough_features', None) or ())


def _mapped(ds: Any, convert: Callable[[Mapping[str, Any]], dict]) -> Any:
  tf = lingvo_runtime.tensorflow()
  # It has no Python control flow for AutoGraph to convert.
  convert = tf.autograph.experimental.do_not_convert(convert)
  return ds.map(convert, num_parallel_calls=tf.data.AUTOTUNE)


def _segments(
  features: Mapping[str, Any], coder: str, is_token: Any
) -> dict[str, Any]:
  """Returns the segments of an example: a single one if it is not packed."""
  tf = lingvo_runtime.tensorflow()
  if f'{coder}_segment_ids' in features:
    return {
      'segment_ids': features[f'{coder}_segment_ids'],
      'segment_pos': features[f'{coder}_positions'],
    }
  segment = tf.cast(is_token, tf.int32)
  return {
    'segment_ids': segment,
    'segment_pos': segment * tf.range(tf.shape(segment)[0]),
  }


def _without_provenance(features: Mapping[str, Any]) -> dict[str, Any]:
  return {k: v for k, v in features.items() if not k.startswith('provenance')}
