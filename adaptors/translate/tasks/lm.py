"""Translators of Lingvo's tasks that train a language model."""

from adaptors.translate import registry
from adaptors.translate.layers.basic_layers import base_fields
from adaptors.translate.registry import Translated, translates
from adaptors.translate.view import ParamsView, class_path
from pax_compat import config as config_lib
from pax_compat.layers import models

_LAYERS = 'lingvo.tasks.lm.layers'
# Networks that take what they get as [time, batch].
_TIME_MAJOR = (
  f'{_LAYERS}.RnnLmNoEmbedding',
  f'{_LAYERS}.MoeLm',
  f'{_LAYERS}.TransformerLmNoEmbedding',
)
_GPIPE = f'{_LAYERS}.GPipeTransformerLm'
# The network that tells packed examples apart, by their segment ids alone.
_PACKED = f'{_LAYERS}.RnnLmNoEmbedding'
_CONDITIONAL = f'{_LAYERS}.ConditionalRnnLm'


@translates('lingvo.tasks.lm.model.LanguageModel')
def language_model(view: ParamsView) -> Translated | None:
  """`LanguageModel`: the model, without how it is trained.

  Lingvo cuts each batch to its longest example; the inputs here are cut to
  their bucket's bound instead, which changes no number.
  """
  packed = view.get('packed_input')
  if packed and _PACKED not in _bases(view.params.lm):
    view.issue('packed_input', f'in Lingvo {_network(view)} takes no packing')
  return _model(view, batch_major=False, packed=packed)


@translates('lingvo.tasks.lm.model.FixedShapeInputLanguageModel')
def fixed_shape_language_model(view: ParamsView) -> Translated | None:
  """`FixedShapeInputLanguageModel`: it leaves training batches as they are."""
  return language_model(view)


@translates('lingvo.tasks.lm.model.BatchMajorLanguageModel')
def batch_major_language_model(view: ParamsView) -> Translated | None:
  """`BatchMajorLanguageModel`: it cuts batches as `LanguageModel` does."""
  view.require('packed_input', False)
  return _model(view, batch_major=True, packed=False)


@translates('lingvo.tasks.lm.model.PackedBatchMajorLanguageModel')
def packed_batch_major_language_model(view: ParamsView) -> Translated | None:
  """`PackedBatchMajorLanguageModel`, around a network of the user's own.

  It hands its network segment ids and positions, which none of Lingvo's own
  networks takes.
  """
  if {_GPIPE, *_TIME_MAJOR} & _bases(view.params.lm):
    view.issue('lm', f'in Lingvo {_network(view)} takes no segment_pos')
  view.require('aux_loss_weight', 0.0)
  view.get('params_init')  # For children, which take it over.
  lm = registry.translate(view.child('lm'))
  fields = base_fields(view)
  if lm is None:
    return None
  config = models.LanguageModel.config(lm_tpl=lm.config, **fields)
  config.lm_tpl.packed_input = True
  return Translated(config, lm.variables.under('lm', 'lm'))


def _model(
  view: ParamsView, *, batch_major: bool, packed: bool
) -> Translated | None:
  """Translates what `LanguageModel` and the classes derived from it share."""
  view.get('params_init')  # For children, which take it over.
  view.ignore('it concerns exporting for inference', 'inference')
  _check_vocabulary(view)
  _check_layout(view, batch_major)
  if _CONDITIONAL in _bases(view.params.lm):
    view.issue('lm', f'{_network(view)} takes a condition, but is given none')
  lm = registry.translate(view.child('lm', packed_input=packed))
  sum_loss = view.group('train').get('sum_loss_across_tokens_in_batch')
  fields = base_fields(view)
  if lm is None:
    return None
  # Of a pipelined network; who trains asks the model for its mesh.
  for name in ('ici_mesh_shape', 'mesh_axis_names'):
    if config_lib.is_set(lm.config, name):
      fields[name] = getattr(lm.config, name)
  config = models.LanguageModel.config(
    lm_tpl=lm.config, sum_loss=sum_loss, **fields
  )
  return Translated(config, lm.variables.under('lm', 'lm'))


def _check_vocabulary(view: ParamsView):
  """Adds an issue where the input's tokens are not the model's."""
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
  """Adds an issue where Lingvo's model feeds its network across.

  Lingvo does not notice that it takes time for examples and examples for time.
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
