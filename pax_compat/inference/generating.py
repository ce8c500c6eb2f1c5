"""Text generation by language models.

Shapes: B prompts, P tokens of the longest, rounded up, T tokens of an output.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from pax_compat import base_input, errors
from pax_compat.inference import (
  compiled_decoders,
  prompt_texts,
  text_streams,
)
from pax_compat.inference.decoding_options import DecodingOptions
from pax_compat.input_core import prompts as prompts_lib
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning


def generate(
  model: Any,
  texts: Sequence[str],
  *,
  data: base_input.BaseInput,
  max_decode_steps: int,
  options: DecodingOptions | None = None,
  draft: Any = None,
  stream: Callable[[text_streams.TextPiece], None] | None = None,
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
    stream: gets each piece of text as soon as it is decoded; None for none.

  Returns:
    The continuation of each text; or with `num_samples` or `beam_size` the list
    of its continuations, the best ones first, or with `stream` in the order of
    `TextPiece.sample`.

  Raises:
    UserError: the model is not a language model, the input does not tokenize
      strings, or the draft model does not suit the model or the options.
  """
  options = options or DecodingOptions()
  _check_arguments(texts, max_decode_steps, options, streams=stream is not None)
  given = {'the model': model, 'the draft model': draft}
  models = {what: one for what, one in given.items() if one is not None}
  for one in models.values():
    prompt_texts.check_continues_texts(one)
  if not texts:
    return []
  prompts = data.prompts(texts)
  longest = int(prompts.lengths.max())
  if not prompts.lengths.min():
    raise errors.UserError(
      'generate: a prompt is empty, and sequences have no first token; expected'
      ' at least one character'
    )
  _check_draft(draft, texts, prompts, options)
  for what, one in models.items():
    prompt_texts.check_length(one, longest, max_decode_steps, what)
  size = prompt_texts.padded_size(prompts.ids.shape[1])
  decoder = compiled_decoders.find(
    model,
    draft,
    compiled_decoders.DecoderKey(
      size=size,
      steps=max_decode_steps,
      eos_id=prompts.eos_id,
      options=dataclasses.replace(options, seed=None),
      streams=stream is not None,
    ),
  )
  run = functools.partial(
    decoder.function,
    model.mdl_vars,
    None if draft is None else draft.mdl_vars,
    _batch(prompts, size, model.program.mesh),
    model.program.task.decode.random_seed
    if options.seed is None
    else options.seed,
  )
  if stream is None:
    out = run(0)
  else:
    out = decoder.streams.run(
      text_streams.TextStream(stream, prompt_texts.to_text(prompts, data)), run
    )
  return _continuations(jax.device_get(out), prompts, data, options)


def _check_arguments(
  texts: Any, max_decode_steps: int, options: DecodingOptions, *, streams: bool
):
  """Raises a UserError for arguments that no model could use."""
  if isinstance(texts, str):
    raise errors.UserError(
      f'generate({texts!r}): expected a list of strings, such as [{texts!r}]'
    )
  if max_decode_steps < 1:
    raise errors.UserError(
      f'max_decode_steps is {max_decode_steps}; expected 1 or more'
    )
  if streams and options.beam_size is not None:
    raise errors.UserError(
      'beam_size and stream are given, but a beam search has no text before its'
      ' end; expected one of them'
    )


def _continuations(
  out: NestedMap,
  prompts: prompts_lib.Prompts,
  data: base_input.BaseInput,
  options: DecodingOptions,
) -> list[str] | list[list[str]]:
  """Returns the texts of the outputs [B, T], or of several [B, N, T] each."""
  if out.ids.ndim == 2:
    return prompt_texts.continuations(out, prompts, data)
  columns = [
    prompt_texts.continuations(
      NestedMap(ids=out.ids[:, i], lengths=out.lengths[:, i]), prompts, data
    )
    for i in range(out.ids.shape[1])
  ]
  if options.num_samples is None and options.beam_size is None:
    return columns[0]
  return [list(row) for row in zip(*columns, strict=True)]


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
        f'draft_steps is {options.draft_steps}, but the draft model is missing;'
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
