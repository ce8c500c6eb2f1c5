"""Prompts and the texts after them.

Shapes: B prompts, T tokens of an output.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pax_compat import base_input, errors
from pax_compat import config as config_lib
from pax_compat.input_core import prompts as prompts_lib
from pax_compat.layers.models import language_model
from pax_compat.nested_map import NestedMap

# Prompts are padded to a multiple, so that few shapes are compiled.
_MULTIPLE = 32


def padded_size(length: int) -> int:
  """Returns the number of positions of a prompt of `length` tokens."""
  return -(-length // _MULTIPLE) * _MULTIPLE


def check_continues_texts(model: Any):
  """Raises a UserError unless this is a language model."""
  template = config_lib.field_values(model.config.model).get('decoder_tpl')
  if template is None or not hasattr(model.program.model, 'lm_tpl'):
    raise errors.UserError(
      f'{type(model.program.model).__name__} does not continue texts; expected'
      ' a LanguageModel. decode() decodes a batch with its own decoder'
    )


def max_positions(model: Any) -> int | None:
  """Returns the number of positions that a model supports; None for any."""
  return language_model.max_positions(model.program.model.lm_tpl)


def check_length(model: Any, prompt: int, steps: int, what: str = 'the model'):
  """Raises a UserError if a text is longer than a model can continue.

  Args:
    model: the `TrainedModel`.
    prompt: number of tokens of the longest prompt.
    steps: maximum number of tokens to add.
    what: names the model in the message.
  """
  most = max_positions(model)
  if most is not None and prompt + steps > most:
    raise errors.UserError(
      f'a prompt has {prompt} tokens, and max_decode_steps is {steps}; expected'
      f' at most {most} together, max_seq_length of lm_tpl.position_emb_tpl of'
      f' {what}'
    )


def continuations(
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


def to_text(
  prompts: prompts_lib.Prompts, data: base_input.BaseInput
) -> Callable[[int, Sequence[int]], str]:
  """Returns the function (prompt, tokens of its continuation) -> text."""
  before = _strings(data, prompts.begin, prompts.ids, prompts.lengths)

  def text_after(row, tokens):
    if tokens and tokens[-1] == prompts.eos_id:
      tokens = tokens[:-1]
    ids = [*prompts.ids[row][: prompts.lengths[row]], *tokens]
    [text] = _strings(
      data, prompts.begin, np.array([ids], np.int32), np.array([len(ids)])
    )
    return text.removeprefix(before[row])

  return text_after
