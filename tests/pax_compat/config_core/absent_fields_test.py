"""Fields of Pax that are not here: their default is valid, the rest refused."""

import functools
import re

import pytest

from pax_compat import base_input, errors, layers
from pax_compat import config as config_lib
from pax_compat.config_core import absent_fields


@functools.cache
def _config(name: str):
  """Returns the config of a class, which no test changes."""
  return _class(name).config()


def _class(name: str) -> type:
  return base_input.BaseInput if name == 'BaseInput' else getattr(layers, name)


@pytest.mark.parametrize(('name', 'field'), absent_fields.names())
def test_only_the_default_is_valid(name, field):
  cls = _class(name)
  absent = absent_fields.find(cls, field)
  config = _config(name)
  setattr(config, field, absent.default)
  assert field not in config_lib.field_values(config)
  assert not hasattr(config, field)
  message = re.escape(f'{name} has no field {field!r} of Pax: {absent.why}')
  with pytest.raises(errors.UserError, match=message):
    setattr(config, field, 'another')


def test_fields_without_an_effect_may_have_other_values(caplog):
  caplog.set_level('INFO')
  config = layers.CircularLayerwiseShardablePipelined.config(
    enable_async_circular_transfer=False, pipeline_broadcast_inputs=True
  )
  config.enable_bubble_grad_skipping = False
  assert [one.getMessage().partition(':')[0] for one in caplog.records] == [
    'enable_async_circular_transfer=False has no effect',
    'pipeline_broadcast_inputs=True has no effect',
    'enable_bubble_grad_skipping=False has no effect',
  ]
  assert not hasattr(config, 'enable_bubble_grad_skipping')
  with pytest.raises(errors.UserError, match='of Pax: .*; expected a bool'):
    config.enable_bubble_grad_skipping = None


def test_fields_of_a_class_are_those_of_its_subclasses():
  assert issubclass(layers.LocalSelfAttention, layers.DotProductAttention)
  config = layers.LocalSelfAttention.config(attention_mask_summary=False)
  with pytest.raises(errors.UserError, match='add_summary of a layer'):
    config.attention_mask_summary = True
  assert absent_fields.find(layers.Linear, 'attention_mask_summary') is None
