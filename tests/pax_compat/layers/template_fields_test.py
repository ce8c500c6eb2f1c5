"""Fields that a parent sets on its child's template."""

import doctest

import jax
import numpy as np
import pytest

from pax_compat import config as config_lib
from pax_compat import errors, layers
from pax_compat.layers import linears, stochastics, template_fields


def _agreed(tpl, **fields):
  return template_fields.agreed('Parent.linear_tpl', tpl, **fields)


def test_the_example():
  result = doctest.testmod(template_fields)
  assert result.attempted > 0
  assert result.failed == 0


def test_none_leaves_a_field_to_the_template():
  tpl = linears.FeedForward.config(input_dims=3)
  fields = _agreed(tpl, input_dims=None, output_dims=4, has_bias=False)
  assert fields == {'output_dims': 4, 'has_bias': False}


@pytest.mark.parametrize('own', [4, None])
def test_both_may_set_the_same_value(own):
  tpl = linears.FeedForward.config(output_dims=own)
  assert _agreed(tpl, output_dims=4) == {'output_dims': 4}


def test_different_values_are_refused():
  tpl = linears.FeedForward.config(output_dims=3)
  with pytest.raises(
    errors.UserError,
    match='Parent.linear_tpl.output_dims is 3, but .* sets it to 4;'
    ' set only one',
  ):
    _agreed(tpl, output_dims=4)


def test_a_default_is_not_what_a_template_says():
  fields = _agreed(linears.FeedForward.config(), has_bias=False)
  assert fields == {'has_bias': False}


def test_the_template_stays_as_it_is():
  tpl = linears.FeedForward.config()
  _agreed(tpl, output_dims=4)
  assert not config_lib.is_set(tpl, 'output_dims')


@pytest.mark.parametrize(
  ('drop_prob', 'want'), [(None, None), (0.0, None), (0.25, 0.75), (1.0, 0.0)]
)
def test_what_is_kept_where_something_is_dropped(drop_prob, want):
  assert template_fields.keep_prob(drop_prob) == want


def test_no_rate_leaves_dropout_to_its_template():
  tpl = stochastics.Dropout.config(keep_prob=0.5)
  assert _agreed(tpl, keep_prob=template_fields.keep_prob(0.0)) == {}


def _split(tpl, **mappings):
  return template_fields.split(tpl, 'weight_split_dims_mapping', **mappings)


def test_a_parent_splits_its_child():
  tpl = linears.Linear.config()
  (mapping,) = _split(tpl, wt=['data', None]).values()
  assert mapping.wt == ['data', None]
  # The template is that of other children, too.
  assert tpl.weight_split_dims_mapping.wt is None


def test_what_a_parent_does_not_split_its_child_splits():
  tpl = linears.Linear.config()
  tpl.weight_split_dims_mapping.wt = ['data', None]
  assert _split(tpl, wt=None) == {}


HEADS = dict(input_dim=4, hidden_dim=4, num_heads=1)
STACK = layers.StackedTransformer.config(model_dims=4, num_layers=1)
INSIDE = 'that of the layers inside'


@pytest.mark.parametrize(
  ('config', 'name', 'expected'),
  [
    (layers.DotProductAttention.config(**HEADS), 'wt', 'proj or dconv'),
    (layers.DotProductAttention.config(**HEADS), 'out', 'blnh or bld'),
    (layers.GroupedQueryAttention.config(**HEADS), 'wt', 'dnh or dkh or dconv'),
    (
      layers.TransformerFeedForward.config(input_dims=4, hidden_dims=4),
      'out',
      'ffn0 or ffn1',
    ),
    (layers.Transformer.config(input_dims=4), 'wt', INSIDE),
    (STACK, 'wt', INSIDE),
    (
      layers.StackedTransformerRepeated.config(block=STACK, x_times=2),
      'wt',
      'block',
    ),
    (layers.Repeat.config(sub_tpl=STACK, x_times=2), 'out', INSIDE),
    (layers.TransformerLm.config(vocab_size=8, model_dims=4), 'out', INSIDE),
    (
      layers.TransformerEncoderDecoder.config(
        model_dims=4,
        encoder_stacked_transformer_tpl=STACK,
        decoder_stacked_transformer_tpl=STACK,
      ),
      'wt',
      INSIDE,
    ),
  ],
  ids=lambda value: getattr(getattr(value, 'cls', None), '__name__', None),
)
def test_a_mapping_that_would_split_nothing_is_refused(config, name, expected):
  kind = {'wt': 'weight', 'out': 'activation'}[name]
  config = config.clone()
  setattr(getattr(config, f'{kind}_split_dims_mapping'), name, ['data'])
  with pytest.raises(
    errors.UserError,
    match=f'{config.cls.__name__}.{kind}_split_dims_mapping.{name} is set, but'
    f' has no effect; expected {expected}',
  ):
    config.Instantiate().init(jax.random.key(0), np.zeros([1, 2, 4]))
