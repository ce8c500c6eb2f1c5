"""Pieces of generated texts, while they are generated.

Shapes: B prompts, N samples of a prompt, L tokens.
"""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from pax_compat.decoding.decoder_utils import StreamingResultCallback

# Stands for bytes that are not, or not yet, a character.
_INCOMPLETE = '\ufffd'


@dataclasses.dataclass(frozen=True)
class TextPiece:
  """The next piece of a continuation.

  The pieces of a continuation, one after another, are its text.

  Attributes:
    prompt: index of the prompt.
    sample: index of the sample of the prompt.
    text: the piece; it may be '' if the tokens do not make a character yet.
    ids: the new tokens, with that which ends the sequence.
    done: whether it is the last piece.
  """

  prompt: int
  sample: int
  text: str
  ids: tuple[int, ...]
  done: bool


class TextStream:
  """Turns the tokens of decoding steps into pieces, in their order."""

  def __init__(
    self,
    callback: Callable[[TextPiece], None],
    to_text: Callable[[int, Sequence[int]], str],
  ):
    """Starts.

    Args:
      callback: gets the pieces.
      to_text: (prompt, tokens of its continuation) -> text.
    """
    self._callback = callback
    self._to_text = to_text
    self._ids = {}
    self._texts = {}
    self._done = set()
    self._early = {}
    self._next = 0
    self._lock = threading.Lock()
    self._error = None

  def put(
    self, step: int, ids: np.ndarray, lengths: np.ndarray, done: np.ndarray
  ):
    """Takes the tokens of a step, in whatever order the steps come.

    Args:
      step: its index.
      ids: [B, N, L], the new tokens.
      lengths: [B, N], the number of them.
      done: [B, N], whether samples have ended.
    """
    with self._lock:
      self._early[step] = ids, lengths, done
      while self._next in self._early:
        self._put(*self._early.pop(self._next))
        self._next += 1

  def put_next(self, ids: np.ndarray, length: int, done: bool):
    """Takes the next tokens, `ids` [1, 1, L], of a single continuation."""
    self.put(self._next, ids, np.array([[length]]), np.array([[done]]))

  def finish(self):
    """Raises what the callback raised."""
    if self._error is not None:
      raise self._error

  def _put(self, ids, lengths, done):
    for index in np.ndindex(*lengths.shape):
      if index in self._done or self._error is not None:
        continue
      new = ids[index][: lengths[index]].tolist()
      is_last = bool(done[index])
      tokens = self._ids.setdefault(index, [])
      tokens += new
      if is_last:
        self._done.add(index)
      piece = self._next_text(index, tokens, is_last)
      try:
        self._callback(TextPiece(*index, piece, tuple(new), is_last))
      except BaseException as error:  # Raised again by finish().
        self._error = error

  def _next_text(self, index, tokens: list[int], is_last: bool) -> str:
    """Returns what the text of a sample has in addition to earlier pieces."""
    text = self._to_text(index[0], tokens)
    before = self._texts.get(index, '')
    if not is_last:
      text = text.rstrip(_INCOMPLETE)
      if not text.startswith(before):
        return ''
    self._texts[index] = text
    return text[len(before) :]


class TracedStreams:
  """The link from a compiled decoding loop to the streams of its calls.

  The compiled function gets a number, which names the stream of a call.
  """

  def __init__(self):
    self._streams = {}
    self._lock = threading.Lock()
    self._last = 0

  def callback(self, number: jax.Array) -> StreamingResultCallback:
    """Returns the callback of the loop.

    Args:
      number: [], int32, that of the call.
    """

    def send(out: Any):
      io_callback(
        self._receive,
        None,
        number,
        out.step,
        out.output_ids,
        out.decode_lengths,
        out.done,
      )

    return StreamingResultCallback(send)

  def _receive(self, number, *values):
    number, step, *arrays = jax.tree.map(np.asarray, (number, *values))
    self._streams[int(number)].put(int(step), *arrays)

  def run(self, stream: TextStream, function: Callable[[np.int32], Any]) -> Any:
    """Returns function(number), after the stream has got all of its results."""
    with self._lock:
      self._last += 1
      number = self._last
    self._streams[number] = stream
    try:
      result = jax.block_until_ready(function(np.int32(number)))
      jax.effects_barrier()
    finally:
      del self._streams[number]
    stream.finish()
    return result
