"""Pieces of texts, while they are generated."""

import numpy as np
import pytest

from pax_compat.inference import text_streams
from pax_compat.inference.text_streams import TextPiece


def _text(prompt, ids):
  del prompt
  return bytes(ids).decode('utf-8', errors='replace')


def _step(stream, number, tokens, done):
  """Puts one token of each sample of one prompt."""
  ids = np.array(tokens)[None, :, None]
  stream.put(number, ids, np.ones(ids.shape[:2], int), np.array([done]))


def test_pieces_come_in_the_order_of_the_steps():
  pieces = []
  stream = text_streams.TextStream(pieces.append, _text)
  _step(stream, 1, [ord('b'), 0], [False, True])
  assert not pieces
  _step(stream, 0, [ord('a'), ord('x')], [False, True])
  _step(stream, 2, [ord('c'), 0], [True, True])
  stream.finish()
  assert pieces == [
    TextPiece(0, 0, 'a', (97,), False),
    TextPiece(0, 1, 'x', (120,), True),
    TextPiece(0, 0, 'b', (98,), False),
    TextPiece(0, 0, 'c', (99,), True),
  ]


def test_a_character_is_never_cut():
  pieces = []
  stream = text_streams.TextStream(pieces.append, _text)
  # The euro sign has three bytes; the last byte begins a character in vain.
  tokens = [*'a\u20acb'.encode(), 0xE2]
  for number, token in enumerate(tokens):
    _step(stream, number, [token], [number == len(tokens) - 1])
  texts = [piece.text for piece in pieces]
  assert texts == ['a', '', '', '\u20ac', 'b', '\ufffd']
  assert ''.join(texts) == _text(0, tokens)


def test_an_error_of_the_callback_is_raised_at_the_end():
  def refuse(piece):
    raise KeyError(piece.text)

  stream = text_streams.TextStream(refuse, _text)
  _step(stream, 0, [97], [False])
  _step(stream, 1, [98], [True])
  with pytest.raises(KeyError, match='a'):
    stream.finish()
