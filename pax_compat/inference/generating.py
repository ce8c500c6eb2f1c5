"""Text generation by language models.

Shapes: B prompts, P tokens of the longest, rounded up, T tokens of an output.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from pax_compat import base_input, base_layer, errors
from pax_compat import config as config_lib
from pax_compat.decoder_hparams import (
  BeamSearchHParams,
  SampleDecoderHParams,
)
from pax_compat.input_core import prompts as prompts_lib
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning

# Prompts are padded to a multiple, so that few shapes are compiled.
_MULTIPLE = 32
# No token has this id: a sequence ends at its maximum length only.
_NO_TOKEN = -1
# Tokens that a draft model proposes in a step.
_DRAFT_STEPS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodingOptions:
  """How texts are continued; each option is None if it is not given.

  The options of sampling select it, and `beam_size` selects beam search;
  without any, the decoder of the model is used.

  Attributes:
    temperature: divides the logits; 0 takes the most likely token.
    top_k: samples from as many tokens; 0 from all, the default.
    top_p: samples from the most likely tokens of this total probability.
    num_samples: number of continuations of each text.
    beam_size: number of hypotheses of a beam search.
    seed: of the samples; that of the task's decoding if None.
    draft_steps: number of tokens that a draft model proposes in a step; None
      for 4.
  """

  temperature: float | None = None
  top_k: int | None = None
  top_p: float | None = None
  num_samples: int | None = None
  beam_size: int | None = None
  seed: int | None = None
  draft_steps: int | None = None

  @property
  def samples(self) -> dict[str, Any]:
    """The given options of sampling, as fields of `SampleDecoderHParams`."""
    given = {
      'temperature': self.temperature,
      'k': self.top_k,
      'p': self.top_p,
      'num_samples': self.num_samples,
    }
    return {name: value for name, value in given.items() if value is not None}

  def decoder(self, config: config_lib.Config) -> config_lib.Config:
    """Returns the config of the decoder.

    Args:
      config: that of the model; its fields are kept where the decoder has them.

    Raises:
      UserError: options of sampling and of beam search are given.
    """
    names = {'k': 'top_k', 'p': 'top_p'}
    if self.beam_size is not None:
      others = [names.get(name, name) for name in self.samples]
      others += ['seed'] * (self.seed is not None)
      if others:
        raise errors.UserError(
          f'beam_size and {others[0]} are given, but a beam search does not'
          ' sample; expected one of them'
        )
      cls, fields = BeamSearchHParams, {'beam_size': self.beam_size}
    elif self.samples:
      cls, fields = SampleDecoderHParams, {'k': 0, **self.samples}
    else:
      return config
    if issubclass(config.cls, cls):
      return config.clone().set(**{**fields, **self.samples})
    known = config_lib.field_names(cls.config())
    kept = {
      name: value
      for name, value in config_lib.set_fields(config).items()
      if name in known
    }
    return cls.config(**{**kept, **fields})


def options(**fields: Any) -> DecodingOptions:
  """Returns options; a UserError names an option that does not exist."""
  names = [field.name for field in dataclasses.fields(DecodingOptions)]
  for name in fields:
    if name not in names:
      raise errors.UserError(
        f'generate() has no option {name!r}' + errors.did_you_mean(name, names)
      )
  return DecodingOptions(**fields)


def generate(
  model: Any,
  texts: Sequence[str],
  *,
  data: base_input.BaseInput,
  max_decode_steps: int,
  options: DecodingOptions | None = None,
  draft: Any = None,
) -> list[str] | list[list[str]]:
  """Returns the continuations of texts.

  Args:
    model: the `TrainedModel`.
    texts: the prompts.
    data: tokenizes and detokenizes.
    max_decode_steps: the maximum number of tokens to add.
    options: of the decoder; None for the decoder of the model.
    draft: a smaller `TrainedModel` of the same vocabulary that proposes tokens;
      None for none.

  Returns:
    The continuation of each text; or with `num_samples` or `beam_size` the list
    of its continuations, the best ones first.

  Raises:
    UserError: the model is not a language model, the input does not tokenize
      strings, or the draft model does not suit the model or the options.
  """
  if isinstance(texts, str):
    raise errors.UserError(
      f'generate({texts!r}): expected a list of strings, such as [{texts!r}]'
    )
  options = options or DecodingOptions()
  if max_decode_steps < 1:
    raise errors.UserError(
      f'max_decode_steps is {max_decode_steps}; expected 1 or more'
    )
  for one in (model, draft):
    if one is not None:
      _check_continues_texts(one)
  if not texts:
    return []
  prompts = data.prompts(texts)
  if not prompts.lengths.min():
    raise errors.UserError(
      'generate: a prompt is empty, and sequences have no first token; expected'
      ' at least one character'
    )
  _check_draft(draft, texts, prompts, options)
  size = -(-prompts.ids.shape[1] // _MULTIPLE) * _MULTIPLE
  decode = _decoder(
    model, draft, size, max_decode_steps, prompts.eos_id, options
  )
  out = decode(
    model.mdl_vars,
    None if draft is None else draft.mdl_vars,
    _batch(prompts, size, model.program.mesh),
    model.program.task.decode.random_seed
    if options.seed is None
    else options.seed,
  )
  out = jax.device_get(out)
  if out.ids.ndim == 2:
    return _continuations(out, prompts, data)
  columns = [
    _continuations(
      NestedMap(ids=out.ids[:, i], lengths=out.lengths[:, i]), prompts, data
    )
    for i in range(out.ids.shape[1])
  ]
  if options.num_samples is None and options.beam_size is None:
    return columns[0]
  return [list(row) for row in zip(*columns, strict=True)]


def _check_continues_texts(model: Any):
  """Raises a UserError unless this is a language model."""
  template = config_lib.field_values(model.config.model).get('decoder_tpl')
  if template is None or not hasattr(model.program.model, 'lm_tpl'):
    raise errors.UserError(
      f'{type(model.program.model).__name__} does not continue texts; expected'
      ' a LanguageModel. decode() decodes a batch with its own decoder'
    )


def _check_draft(
  draft: Any,
  texts: Sequence[str],
  prompts: prompts_lib.Prompts,
  options: DecodingOptions,
):
  """Raises a UserError unless the draft model suits the prompts and options."""
  if draft is None:
    if options.draft_steps is not None:
      raise errors.UserError(
        f'draft_steps is {options.draft_steps}, but there is no draft model;'
        ' expected draft'
      )
    return
  if options.beam_size is not None:
    raise errors.UserError(
      'beam_size and draft are given, but a beam search does not use a draft'
      ' model; expected one of them'
    )
  own = draft.input().prompts(texts)
  if not np.array_equal(own.ids, prompts.ids):
    raise errors.UserError(
      'the draft model has other tokens for these prompts than the model;'
      ' expected the same vocabulary'
    )


def _batch(prompts: prompts_lib.Prompts, size: int, mesh: Any) -> NestedMap:
  """Returns a batch of prompts of `size` tokens, replicated."""
  missing = size - prompts.ids.shape[1]
  ids = np.pad(prompts.ids, ((0, 0), (0, missing)))
  is_prompt = np.arange(size) < prompts.lengths[:, np.newaxis]
  batch = NestedMap(
    ids=ids,
    labels=ids,
    paddings=1 - is_prompt.astype(np.float32),
    weights=is_prompt.astype(np.float32),
    inputs_indicator=is_prompt.astype(np.int32),
    prefix_lengths=prompts.lengths,
  )
  return jax.device_put(batch, partitioning.replicated(mesh))


def _decoder(
  model: Any,
  draft: Any,
  size: int,
  steps: int,
  eos_id: int | None,
  options: DecodingOptions,
):
  """Returns the function (mdl_vars, draft_vars, batch, seed) -> arrays.

  A model keeps its functions, so that each is compiled once.
  """
  key = (
    id(draft),
    size,
    steps,
    eos_id,
    dataclasses.replace(options, seed=None),
  )
  if key not in model.decoders:
    # With the draft model, so that its id stays its own.
    model.decoders[key] = (
      draft,
      _compiled(model, draft, size, steps, eos_id, options),
    )
  return model.decoders[key][1]


def _compiled(
  model: Any,
  draft: Any,
  size: int,
  steps: int,
  eos_id: int | None,
  options: DecodingOptions,
):
  """Returns the compiled function; see `_decoder`."""
  settings = model.config.model.clone()
  decoder = options.decoder(settings.decoder_tpl)
  settings.decoder_tpl = decoder
  fields = dict(seqlen=size + steps, max_decode_steps=steps)
  if not config_lib.is_set(decoder, 'eos_id'):
    fields['eos_id'] = _NO_TOKEN if eos_id is None else eos_id
  if options.beam_size is not None or options.samples or draft is not None:
    fields['fprop_for_prefix'] = True
  decoder.set(**fields)
  network = settings.Instantiate()
  task, mesh = model.program.task, model.program.mesh

  def decoded(mdl_vars, draft_vars, batch, rngs):
    if draft is not None:
      return network.bind(mdl_vars, rngs=rngs).decode_with_draft(
        draft.program.model.bind(draft_vars, rngs=rngs),
        network.decoder_tpl,
        batch,
        draft_steps=options.draft_steps or _DRAFT_STEPS,
      )
    (_, found, _), _ = network.apply(
      mdl_vars,
      batch,
      method='decode',
      rngs=rngs,
      mutable=list(task.decode.apply_mutable_list),
    )
    return found

  @jax.jit
  def decode(mdl_vars, draft_vars, batch, seed):
    with (
      base_layer.eval_mode(),
      jax.sharding.use_abstract_mesh(mesh.abstract_mesh),
    ):
      rngs = {base_layer.RANDOM: jax.random.key(seed)}
      found = decoded(mdl_vars, draft_vars, batch, rngs)
    return NestedMap(ids=found.output_ids, lengths=found.decode_lengths)

  return decode


def _continuations(
  out: NestedMap, prompts: prompts_lib.Prompts, data: base_input.BaseInput
) -> list[str]:
  """Returns the text after each prompt.

  Whole outputs are detokenized, because tokenizers of pieces put spaces between
  tokens only.
  """
  lengths = np.array(out.lengths)
  if prompts.eos_id is not None:
    last = out.ids[np.arange(len(lengths)), lengths - 1]
    ended = (last == prompts.eos_id) & (lengths > prompts.lengths)
    lengths -= ended
  strings = functools.partial(_strings, data, prompts.begin)
  whole = strings(out.ids, lengths)
  before = strings(prompts.ids, prompts.lengths)
  return [
    text.removeprefix(start) for text, start in zip(whole, before, strict=True)
  ]


def _strings(data, begin: int, ids, lengths) -> list[str]:
  """Returns strings of tokens, without the first `begin` of each row."""
  return [
    str(text)
    for text in data.ids_to_strings(
      ids[:, begin:], np.maximum(lengths - begin, 0)
    )
  ]
