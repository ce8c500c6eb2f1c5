"""Tests of `pax_compat.config_core.annotations`."""

from __future__ import annotations

import dataclasses
import doctest
import typing

import pytest

from pax_compat import errors, pax_fiddle
from pax_compat.config_core import annotations

if typing.TYPE_CHECKING:
  from pax_compat.pax_fiddle import Config as Unknown


@dataclasses.dataclass
class Block:
  dense_tpl: pax_fiddle.Config
  unknown: Unknown | None = None
  sizes: tuple[int, ...] | Unknown = (1, 2)
  shared: typing.ClassVar[int] = 1


class Wider(Block):
  def __init__(self, others: dict[str, pax_fiddle.Config[Block]], *args):
    super().__init__(*args)
    self.others = others


def test_examples():
  assert not doctest.testmod(annotations).failed


def test_annotations_count_one_by_one():
  config = pax_fiddle.Config(Block, dense_tpl=pax_fiddle.Config(Block))
  built = config.Instantiate()
  assert built.dense_tpl == config.dense_tpl and built.sizes == (1, 2)
  config.unknown = pax_fiddle.Config(Block)
  with pytest.raises(errors.UserError, match="'unknown'.*'Unknown' is not def"):
    config.Instantiate()


def test_arguments_of_init_are_annotated_too():
  assert annotations.is_template(Wider, 'others')
  assert annotations.is_template(Wider, 'dense_tpl')
  assert not annotations.is_template(Wider, 'shared')
  assert not annotations.is_template(Wider, 'args')
