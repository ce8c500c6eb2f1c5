"""Feature converters: from a SeqIO task's features to what models read.

They are called as SeqIO's own are, with a `tf.data` set and the lengths of its
features, and hold only settings: SeqIO is loaded when one is called.

Shapes: T tokens of an example, inputs and targets together.
"""

from collections.abc import Callable, Mapping
from typing import Any

from adaptors import lingvo_runtime
from pax_compat import config as config_lib
from pax_compat import errors

# Features that say to which task an example belongs, and whose they become.
_TASK_IDS = (
  ('src_task_ids', 'src'),
  ('tgt_task_ids', 'tgt'),
  ('task_ids', 'src'),
  ('task_ids', 'tgt'),
)


class Converter(config_lib.Configurable):
  """Base of the converters."""

  # The features whose lengths have to be known.
  NEEDS = ()

  def __call__(self, ds: Any, task_feature_lengths: Mapping[str, int]) -> Any:
    """Returns the converted `tf.data` set.

    Args:
      ds: the task's examples.
      task_feature_lengths: of each feature.
    """
    raise NotImplementedError(type(self).__name__)

  @property
  def passthrough(self) -> tuple[str, ...]:
    """The features that stay as they are."""
    return ()

  def _refuse_custom_ops(self, is_asked: bool):
    self.check(
      not is_asked,
      'use_custom_packing_ops is True; expected False, as the tensor2tensor ops'
      " that it asks for are not part of TensorFlow. `pack` uses SeqIO's own",
    )


class LanguageModelFeatures(Converter):
  """Makes one sequence of an example, for a language model.

  That is the targets, and before them the inputs where
  `task_feature_lengths` has them. Batches have, [T] each:

    * `ids` and `labels`: int32, the tokens before and after each position.
    * `paddings`: float32, 1 where there is no token.
    * `weights`: float32, how much a token counts in the loss.
    * `segment_ids` and `segment_pos`: int32, which of a row's examples a token
      belongs to, from 1 on, 0 at padding; and its place there, from 0 on.
    * `inputs_indicator`: int32, 1 at tokens of the inputs and at the first of
      the targets, as far as these read their own labels; where there are
      inputs.

  Attributes:
    pack: whether several examples share a row.
    use_custom_packing_ops: must be False.
    weights_on_targets_only: None: all tokens count, but those of negative ids,
      which stand for tokens to be read and not predicted. True: only tokens of
      the targets, less the negative. False: all tokens.
    apply_length_check: whether a feature that is longer than its length is an
      error.
    bos_id: what stands before the first token.
    reverse_bos_padding: whether `ids` are the tokens and `labels` the next
      ones, with `eos_id` at the end, in place of `bos_id` at the beginning.
    eos_id: see there.
    target_has_suffix: whether only tokens of the feature `suffixes`, which
      follow the targets, count.
    passthrough_features: specs (`seqio.FeatureConverter.FeatureSpec`) of
      features that stay as they are, by name.
  """

  NEEDS = ('targets',)

  pack: bool = False
  use_custom_packing_ops: bool = False
  weights_on_targets_only: bool | None = None
  apply_length_check: bool = True
  bos_id: int = 0
  reverse_bos_padding: bool = False
  eos_id: int = 1
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
    """The features that stay as they are."""
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
    return _mapped(converter(ds, task_feature_lengths), self.of_decoder)

  def of_decoder(self, features: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of an example with a decoder's features [T]."""
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
    """Returns fields whose `ids` begin with the first token.

    The last token of a segment counts as padding: what follows it in the row is
    no label of it.
    """
    tf = lingvo_runtime.tensorflow()
    segments = fields['segment_ids']
    following = tf.concat([segments[1:], segments[-1:]], axis=0)
    is_last = (segments != following) & (following > 0)

    def next_of(x, last):
      last = tf.cast(last, x.dtype)
      return tf.where(is_last, last, tf.concat([x[1:], [last]], axis=0))

    return fields | {
      'ids': fields['labels'],
      'labels': next_of(fields['labels'], self.eos_id),
      'weights': next_of(fields['weights'], 0),
      'paddings': next_of(fields['paddings'], 1),
    }


class PackedLanguageModelFeatures(LanguageModelFeatures):
  """Takes examples that have a decoder's features, packed or not, already.

  These are SeqIO's `decoder_input_tokens`, `decoder_target_tokens` and
  `decoder_loss_weights`, and `decoder_segment_ids` and `decoder_positions`
  where they are packed. Batches are those of `LanguageModelFeatures`.
  """

  NEEDS = ()

  def __post_init__(self):
    super().__post_init__()
    _check_not_packing(self)

  def __call__(self, ds: Any, task_feature_lengths: Mapping[str, int]) -> Any:
    """See the base class."""
    del task_feature_lengths
    return _mapped(ds, self.of_decoder)


class SequenceModelFeatures(Converter):
  """Makes a source and a target sequence, for an encoder and a decoder.

  Batches have them under `src` and `tgt`, each with `ids`, `paddings`,
  `segment_ids` and `segment_pos` as of `LanguageModelFeatures`, the target with
  `labels` and `weights` too.

  Attributes:
    pack: whether several examples share a row.
    use_custom_packing_ops: must be False.
    bos_id: what stands before the first token of the target.
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
    return _mapped(converter(ds, task_feature_lengths), self.of_coders)

  def of_coders(self, features: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of an example with an encoder's and a decoder's."""
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
  """Keeps the ids of tasks, too, by which a model may route.

  The features `src_task_ids` and `tgt_task_ids` become `task_ids` of `src` and
  `tgt`, `task_ids` of both, as far as there are any. They are lists, whose
  lengths `task_feature_lengths` has to have.
  """

  @property
  def passthrough(self) -> tuple[str, ...]:
    """The features that stay as they are."""
    return tuple({name: None for name, _ in _TASK_IDS})

  def __post_init__(self):
    super().__post_init__()
    self.check(
      not self.pack,
      'pack is True; expected False, as packed rows hold several examples',
    )

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
    converter = seqio.EncDecFeatureConverter(
      pack=False,
      bos_id=self.bos_id,
      passthrough_features={
        name: seqio.FeatureConverter.FeatureSpec(
          dtype=spec.dtype, rank=spec.shape.rank
        )
        for name, spec in found.items()
      },
    )
    return _mapped(converter(ds, task_feature_lengths), self.of_coders)


class PackedSequenceModelFeatures(SequenceModelFeatures):
  """Takes examples that have the features of both coders already.

  These are SeqIO's `encoder_input_tokens`, `decoder_...` and so on, packed
  where there are `encoder_segment_ids`. Batches are those of
  `SequenceModelFeatures`.
  """

  NEEDS = ()

  def __post_init__(self):
    super().__post_init__()
    _check_not_packing(self)

  def __call__(self, ds: Any, task_feature_lengths: Mapping[str, int]) -> Any:
    """See the base class."""
    del task_feature_lengths
    return _mapped(ds, self.of_coders)


class RemoveProvenance(Converter):
  """Leaves features as they are, less those named `provenance...`."""

  def __call__(self, ds: Any, task_feature_lengths: Mapping[str, int]) -> Any:
    """See the base class."""
    del task_feature_lengths
    return _mapped(ds, _without_provenance)


class UnflattenAndRemoveProvenance(Converter):
  """Does that, and makes of features `a/b` fields `b` of `a` before."""

  def __call__(self, ds: Any, task_feature_lengths: Mapping[str, int]) -> Any:
    """See the base class."""
    del task_feature_lengths

    def convert(features):
      return _without_provenance(
        lingvo_runtime.seqio().unflatten_dict(features)
      )

    return _mapped(ds, convert)


def built(converter: Any) -> Callable:
  """Returns a converter, built where it is a config.

  Raises:
    UserError: it is none.
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


def passthrough_of(converter: Any) -> tuple[str, ...]:
  """Returns the features that a converter leaves as they are."""
  if isinstance(converter, Converter):
    return converter.passthrough
  return tuple(getattr(converter, '_passthrough_features', None) or ())


def _mapped(ds: Any, convert: Callable[[Mapping[str, Any]], dict]) -> Any:
  tf = lingvo_runtime.tensorflow()
  # There is no control flow in it that TensorFlow would have to translate.
  convert = tf.autograph.experimental.do_not_convert(convert)
  return ds.map(convert, num_parallel_calls=tf.data.AUTOTUNE)


def _segments(
  features: Mapping[str, Any], coder: str, is_token: Any
) -> dict[str, Any]:
  """Returns the segments of an example; one of all tokens if not packed."""
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


def _check_not_packing(converter: Converter):
  converter.check(
    not converter.pack,
    'pack is True; expected False, as the examples are packed already',
  )
