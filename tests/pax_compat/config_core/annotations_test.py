"""Tests of `pax_compat.config_core.annotations`."""

from __future__ import annotations

import dataclasses
import doctest
import typing

import pytest

from pax_compat import config, errors, pax_fiddle
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
  block = pax_fiddle.Config(Block, dense_tpl=pax_fiddle.Config(Block))
  built = block.Instantiate()
  assert built.dense_tpl == block.dense_tpl and built.sizes == (1, 2)
  block.unknown = pax_fiddle.Config(Block)
  with pytest.raises(errors.UserError, match="'unknown'.*'Unknown' is not def"):
    block.Instantiate()


def test_hparams_stand_for_configs():
  @dataclasses.dataclass
  class Older:
    any_tpl: config.BaseHParams
    own_tpl: config.BaseHParams | None
    size: int

  found = {n: annotations.is_template(Older, n) for n in Older.__annotations__}
  assert found == {'any_tpl': True, 'own_tpl': True, 'size': False}


def test_arguments_of_init_are_annotated_too():
  assert annotations.is_template(Wider, 'others')
  assert annotations.is_template(Wider, 'dense_tpl')
  assert not annotations.is_template(Wider, 'shared')
  assert not annotations.is_template(Wider, 'args')
