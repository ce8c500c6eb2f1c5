"""Text generation by language models.

Shapes: B prompts, P tokens of the longest, rounded up, T tokens of an output.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from pax_compat import base_input, base_layer, errors
from pax_compat import config as config_lib
from pax_compat.input_core import prompts as prompts_lib
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning

# Prompts are padded to a multiple, so that few shapes are compiled.
_MULTIPLE = 32
# No token has this id: a sequence ends at its maximum length only.
_NO_TOKEN = -1


def generate(
  model: Any,
  texts: Sequence[str],
  *,
  data: base_input.BaseInput,
  max_decode_steps: int,
) -> list[str]:
  """Returns the continuations of texts.

  Args:
    model: the `TrainedModel`.
    texts: the prompts.
    data: tokenizes and detokenizes.
    max_decode_steps: the maximum number of tokens to add.

  Raises:
    UserError: the model is not a language model, or the input does not tokenize
      strings.
  """
  if isinstance(texts, str):
    raise errors.UserError(
      f'generate({texts!r}): expected a list of strings, such as [{texts!r}]'
    )
  if max_decode_steps < 1:
    raise errors.UserError(
      f'max_decode_steps is {max_decode_steps}; expected 1 or more'
    )
  template = config_lib.field_values(model.config.model).get('decoder_tpl')
  if template is None or not hasattr(model.program.model, 'lm_tpl'):
    raise errors.UserError(
      f'{type(model.program.model).__name__} does not continue texts; expected'
      ' a LanguageModel. decode() decodes a batch with its own decoder'
    )
  if not texts:
    return []
  prompts = data.prompts(texts)
  if not prompts.lengths.min():
    raise errors.UserError(
      'generate: a prompt is empty, and sequences have no first token; expected'
      ' at least one character'
    )
  size = -(-prompts.ids.shape[1] // _MULTIPLE) * _MULTIPLE
  out = _decoder(model, size, max_decode_steps, prompts.eos_id)(
    model.mdl_vars, _batch(prompts, size, model.program.mesh)
  )
  return _continuations(jax.device_get(out), prompts, data)


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


def _decoder(model: Any, size: int, steps: int, eos_id: int | None):
  """Returns the compiled function (mdl_vars, batch) -> decoded arrays."""
  settings = model.config.model.clone()
  decoder = settings.decoder_tpl
  fields = dict(seqlen=size + steps, max_decode_steps=steps)
  if not config_lib.is_set(decoder, 'eos_id'):
    fields['eos_id'] = _NO_TOKEN if eos_id is None else eos_id
  decoder.set(**fields)
  network = settings.Instantiate()
  task, mesh = model.program.task, model.program.mesh

  @jax.jit
  def decode(mdl_vars, batch):
    with (
      base_layer.eval_mode(),
      jax.sharding.use_abstract_mesh(mesh.abstract_mesh),
    ):
      (_, decoded, _), _ = network.apply(
        mdl_vars,
        batch,
        method='decode',
        rngs={base_layer.RANDOM: jax.random.key(task.decode.random_seed)},
        mutable=list(task.decode.apply_mutable_list),
      )
    return NestedMap(ids=decoded.output_ids, lengths=decoded.decode_lengths)

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
