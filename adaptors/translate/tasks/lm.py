"""Translators of the models of Lingvo's language-model tasks."""

from adaptors.translate import registry
from adaptors.translate.registry import Translated, translates
from adaptors.translate.view import ParamsView, class_path
from pax_compat import config as config_lib
from pax_compat.layers import models

_LAYERS = 'lingvo.tasks.lm.layers'
# Networks with inputs of [time, batch].
_TIME_MAJOR = (
  f'{_LAYERS}.RnnLmNoEmbedding',
  f'{_LAYERS}.MoeLm',
  f'{_LAYERS}.TransformerLmNoEmbedding',
)
_GPIPE = f'{_LAYERS}.GPipeTransformerLm'
# The network that supports packed examples, with segment ids only.
_PACKED = f'{_LAYERS}.RnnLmNoEmbedding'
_CONDITIONAL = f'{_LAYERS}.ConditionalRnnLm'


@translates('lingvo.tasks.lm.model.LanguageModel')
def language_model(view: ParamsView) -> Translated | None:
  """Returns the model.

  Lingvo trims the padding of each batch to its longest example; the inputs here
  are padded to their bucket's upper bound instead, which changes no result.
  """
  packed = view.get('packed_input')
  if packed and _PACKED not in _bases(view.params.lm):
    view.issue('packed_input', f'in Lingvo {_network(view)} takes no packing')
  return _model(view, batch_major=False, packed=packed)


@translates('lingvo.tasks.lm.model.FixedShapeInputLanguageModel')
def fixed_shape_language_model(view: ParamsView) -> Translated | None:
  """Returns the same as `language_model`."""
  return language_model(view)


@translates('lingvo.tasks.lm.model.BatchMajorLanguageModel')
def batch_major_language_model(view: ParamsView) -> Translated | None:
  """Returns the same as `language_model`, for batch-major networks."""
  view.require('packed_input', False)
  return _model(view, batch_major=True, packed=False)


@translates('lingvo.tasks.lm.model.PackedBatchMajorLanguageModel')
def packed_batch_major_language_model(view: ParamsView) -> Translated | None:
  """Returns the model of a user's network.

  It passes segment ids and positions, which none of Lingvo's networks takes.
  """
  if {_GPIPE, *_TIME_MAJOR} & _bases(view.params.lm):
    view.issue('lm', f'in Lingvo {_network(view)} takes no segment_pos')
  view.require('aux_loss_weight', 0.0)
  lm = registry.translate(view.child('lm'))
  if lm is None:
    return None
  config = models.LanguageModel.config(lm_tpl=lm.config)
  config.lm_tpl.packed_input = True
  return Translated(config, lm.variables.under('lm', 'lm'))


def _model(
  view: ParamsView, *, batch_major: bool, packed: bool
) -> Translated | None:
  """Translates the fields that all language models have."""
  view.ignore('it concerns exporting for inference', 'inference')
  _check_vocabulary(view)
  _check_layout(view, batch_major)
  if _CONDITIONAL in _bases(view.params.lm):
    view.issue('lm', f'{_network(view)} takes a condition, but is given none')
  lm = registry.translate(view.child('lm', packed_input=packed))
  sum_loss = view.group('train').get('sum_loss_across_tokens_in_batch')
  if lm is None:
    return None
  # The mesh of a pipelined network; the trainer reads it from the model.
  fields = {}
  for name in ('ici_mesh_shape', 'mesh_axis_names'):
    if config_lib.is_set(lm.config, name):
      fields[name] = getattr(lm.config, name)
  config = models.LanguageModel.config(
    lm_tpl=lm.config, sum_loss=sum_loss, **fields
  )
  return Translated(config, lm.variables.under('lm', 'lm'))


def _check_vocabulary(view: ParamsView):
  """Adds an issue if the tokenizer has another vocabulary."""
  data = view.get('input')
  if data is None or 'tokenizer' not in data or data.tokenizer is None:
    return
  tokens, classes = data.tokenizer.vocab_size, view.params.lm.vocab_size
  if tokens != classes:
    view.issue(
      'lm.vocab_size',
      f"{classes} is not the vocab_size of the input's tokenizer, {tokens}",
    )


def _check_layout(view: ParamsView, batch_major: bool):
  """Adds an issue if model and network disagree on the batch dimension.

  Lingvo does not check it.
  """
  wants = _is_batch_major(view.params.lm)
  if wants is not None and wants != batch_major:
    has, takes = (
      '[batch, time]' if major else '[time, batch]'
      for major in (batch_major, wants)
    )
    view.issue('lm', f'{_network(view)} takes {takes}, but is given {has}')


def _is_batch_major(lm) -> bool | None:
  """Whether a network of Lingvo's takes [batch, time]; None if unknown."""
  bases = _bases(lm)
  if bases.intersection(_TIME_MAJOR):
    return False
  return lm.stack.batch_dim == 0 if _GPIPE in bases else None


def _bases(params) -> set[str]:
  return set(map(class_path, params.cls.__mro__))


def _network(view: ParamsView) -> str:
  return view.params.lm.cls.__name__
