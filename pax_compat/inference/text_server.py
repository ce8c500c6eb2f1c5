"""A server of texts: prompts join and leave the batch while it is decoded.

Shapes: R slots, P tokens of a prompt, rounded up, T positions of a slot.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from pax_compat import base_input, base_layer, errors
from pax_compat.decoding import continuous_batching
from pax_compat.inference import compiled_decoders, prompt_texts, text_streams
from pax_compat.inference.decoding_options import DecodingOptions
from pax_compat.input_core import prompts as prompts_lib


@dataclasses.dataclass
class _Request:
  """A prompt that waits, or is being continued."""

  ticket: int
  prompts: prompts_lib.Prompts
  max_steps: int
  temperature: float
  stream: text_streams.TextStream | None
  sent: int = 0


class TextServer:
  """Continues texts by continuous batching.

  >>> server = model.server(num_cache_slots=8)               # doctest: +SKIP
  >>> ticket = server.submit('The ')                         # doctest: +SKIP
  >>> server.run()[ticket]                                   # doctest: +SKIP

  A prompt takes the first free slot, also while others are being continued, and
  its text is the one that it has alone. It is for one thread.
  """

  def __init__(
    self,
    model: Any,
    *,
    data: base_input.BaseInput,
    num_cache_slots: int,
    max_prefix_len: int,
    max_decode_steps: int,
    steps_at_once: int,
    options: DecodingOptions,
  ):
    """Allocates the cache of all slots.

    Args:
      model: the `TrainedModel`.
      data: tokenizes and detokenizes.
      num_cache_slots: R.
      max_prefix_len: maximum number of tokens of a prompt; rounded up to a
        multiple of 32.
      max_decode_steps: maximum number of tokens to add.
      steps_at_once: maximum number of tokens between two looks at the slots.
      options: of sampling.

    Raises:
      UserError: a number is not positive, or the decoder does not decode in
        slots.
    """
    for name, value in (
      ('num_cache_slots', num_cache_slots),
      ('max_prefix_len', max_prefix_len),
      ('max_decode_steps', max_decode_steps),
      ('steps_at_once', steps_at_once),
    ):
      if value < 1:
        raise errors.UserError(f'server: {name} is {value}; expected 1 or more')
    prompt_texts.check_continues_texts(model)
    if options.draft_steps is not None:
      raise errors.UserError(
        'server: draft_steps is given, but a server has no'
        ' draft model; expected None'
      )
    self._model, self._data = model, data
    self._max_prefix = prompt_texts.padded_size(max_prefix_len)
    self._max_steps = max_decode_steps
    self._steps_at_once = steps_at_once
    self._options = options
    self._eos_id = data.prompts(['a']).eos_id
    self._total = self._max_prefix + max_decode_steps
    self._network = compiled_decoders.network_of(
      model,
      None,
      compiled_decoders.DecoderKey(
        size=self._max_prefix,
        steps=max_decode_steps,
        eos_id=self._eos_id,
        options=options,
        streams=True,
      ),
    )
    self._temperature = getattr(self._network.decoder_tpl, 'temperature', 0.0)
    seed = model.program.task.decode.random_seed
    self._key = jax.random.key(seed if options.seed is None else options.seed)
    self._requests = [None] * num_cache_slots
    self._waiting = collections.deque()
    self._tickets = 0
    self._slots = jax.jit(
      lambda mdl_vars: self._in_context(lambda: self._decoder(mdl_vars).empty())
    )(model.mdl_vars)

  def submit(
    self,
    text: str,
    *,
    max_decode_steps: int | None = None,
    temperature: float | None = None,
    stream: Callable[[text_streams.TextPiece], None] | None = None,
  ) -> int:
    """Takes a prompt; it waits for a free slot until `step` or `run`.

    Args:
      text: the prompt.
      max_decode_steps: maximum number of tokens to add, at most that of the
        server, which None takes.
      temperature: of the samples; None for that of the server.
      stream: gets pieces of the text as they are decoded; the index of the
        prompt in them is 0.

    Returns:
      A ticket, by which the text is found.

    Raises:
      UserError: the prompt is empty or too long, or a value is out of range.
    """
    prompts = self._data.prompts([text])
    length = int(prompts.lengths[0])
    steps = self._max_steps if max_decode_steps is None else max_decode_steps
    for ok, problem in (
      (length >= 1, 'the prompt is empty; expected at least one character'),
      (
        length <= self._max_prefix,
        f'the prompt has {length} tokens; expected at most max_prefix_len,'
        f' {self._max_prefix}',
      ),
      (
        1 <= steps <= self._max_steps,
        f'max_decode_steps is {steps}; expected 1 to {self._max_steps}',
      ),
      (
        temperature is None or temperature >= 0,
        f'temperature is {temperature}; expected 0 or more',
      ),
    ):
      if not ok:
        raise errors.UserError(f'submit: {problem}')
    prompt_texts.check_length(self._model, length, steps)
    if stream is not None:
      to_text = prompt_texts.to_text(prompts, self._data)
      stream = text_streams.TextStream(stream, to_text)
    self._tickets += 1
    self._waiting.append(
      _Request(
        self._tickets,
        prompts,
        steps,
        self._temperature if temperature is None else temperature,
        stream,
      )
    )
    return self._tickets

  @property
  def num_active(self) -> int:
    """The number of prompts that wait or are being continued."""
    return len(self._waiting) + sum(r is not None for r in self._requests)

  def step(self) -> dict[int, str]:
    """Lets prompts join, and decodes until one has ended, or some steps.

    Returns:
      The continuation of each prompt that has ended, by ticket.
    """
    for slot, request in enumerate(self._requests):
      if request is None and self._waiting:
        self._requests[slot] = self._waiting.popleft()
        self._insert(slot, self._requests[slot])
    if all(request is None for request in self._requests):
      return {}
    streams = any(r is not None and r.stream for r in self._requests)
    self._slots = self._decode(
      self._model.mdl_vars, self._slots, 1 if streams else self._steps_at_once
    )
    return self._collect()

  def run(self) -> dict[int, str]:
    """Continues all prompts; returns the continuation of each by ticket."""
    found = {}
    while self.num_active:
      found.update(self.step())
    return found

  def _decoder(self, mdl_vars: Any) -> continuous_batching.SlotDecoder:
    """Returns the functions of slots."""
    model = self._network.bind(mdl_vars, rngs={base_layer.RANDOM: self._key})
    return model.slot_decoder(
      model.decoder_tpl, slots=len(self._requests), positions=self._total
    )

  def _in_context(self, function: Callable) -> Any:
    mesh = self._model.program.mesh.abstract_mesh
    with base_layer.eval_mode(), jax.sharding.use_abstract_mesh(mesh):
      return function()

  def _insert(self, slot: int, request: _Request):
    ids = request.prompts.ids[0]
    size = prompt_texts.padded_size(len(ids))
    self._slots = self._insert_compiled(
      self._model.mdl_vars,
      self._slots,
      np.int32(slot),
      np.pad(ids, (0, size - len(ids))),
      request.prompts.lengths[0],
      np.int32(request.max_steps),
      np.float32(request.temperature),
    )

  @functools.cached_property
  def _insert_compiled(self):
    def insert(mdl_vars, slots, slot, ids, length, max_steps, temperature):
      return self._in_context(
        lambda: self._decoder(mdl_vars).insert(
          slots,
          slot,
          continuous_batching.single_prefix(ids, length),
          max_steps=max_steps,
          temperature=temperature,
        )
      )

    return jax.jit(insert, donate_argnums=1)

  @functools.cached_property
  def _decode(self):
    def decode(mdl_vars, slots, steps):
      return self._in_context(
        lambda: self._decoder(mdl_vars).decode(slots, steps)
      )

    return jax.jit(decode, donate_argnums=1)

  def _collect(self) -> dict[int, str]:
    """Sends new tokens to streams; frees the slots of what has ended."""
    slots = self._slots
    ids, offsets, position, done = jax.device_get(
      (slots.ids, slots.offsets, slots.position, slots.done)
    )
    found = {}
    for slot, request in enumerate(self._requests):
      if request is None:
        continue
      start = offsets[slot] + request.prompts.lengths[0]
      tokens = ids[slot, start : position[slot] + 1]
      is_done = bool(done[slot])
      if request.stream is not None:
        _send(request, tokens, is_done)
      if is_done:
        self._requests[slot] = None
        found[request.ticket] = prompt_texts.to_text(
          request.prompts, self._data
        )(0, tokens.tolist())
    return found


def _send(request: _Request, tokens: np.ndarray, is_done: bool):
  """Gives the tokens of a request that are new to its stream."""
  new = tokens[request.sent :]
  if len(new) or is_done:
    request.stream.put_next(new[None, None], len(new), is_done)
    request.sent = len(tokens)
  request.stream.finish()
