"""Small language models trained in Lingvo and here, optimizer included."""

import numpy as np
import pytest

from adaptors import lingvo_runtime
from pax_compat import errors
from pax_compat.nested_map import NestedMap
from tests.adaptors.translate import tiny_task
from tests.adaptors.translate.tiny_task import optimizer, schedule

_VOCAB, _ROWS, _LENGTH = 76, 3, 6


def _batches(count):
  rng = np.random.default_rng(1)
  batches = []
  for _ in range(count):
    ids = rng.integers(3, _VOCAB, [_ROWS, _LENGTH]).astype(np.int32)
    paddings = np.zeros([_ROWS, _LENGTH], np.float32)
    paddings[0, -2:] = 1
    batches.append(
      NestedMap(
        ids=ids,
        labels=np.roll(ids, -1, 1),
        paddings=paddings,
        weights=1 - paddings,
        word_count=np.full([_ROWS], 2, np.int32),
      )
    )
  return batches


def _params(lm, **train):
  """Returns Params of a `LanguageModel` around a network's."""
  model = lingvo_runtime.module('lingvo.tasks.lm.model')
  inputs = lingvo_runtime.module('lingvo.tasks.lm.input_generator')
  tokenizers = lingvo_runtime.module('lingvo.core.tokenizers')
  params = model.LanguageModel.Params().Set(name='lm', lm=lm)
  params.input = inputs.LmInput.Params().Set(
    tokenizer=tokenizers.AsciiTokenizer.Params().Set(vocab_size=_VOCAB)
  )
  # As the stock experiments do, of what the class clips and regularises.
  params.train.Set(
    clip_gradient_norm_to_value=0.0,
    grad_norm_to_clip_to_zero=0.0,
    l2_regularizer_weight=None,
  )
  params.train.Set(**train)
  return params


def _transformer(**train):
  layers = lingvo_runtime.module('lingvo.tasks.lm.layers')
  lm = layers.TransformerLm.CommonParams(
    model_dim=8,
    hidden_dim=16,
    num_heads=2,
    num_layers=1,
    vocab_size=_VOCAB,
    residual_dropout_prob=0.0,
    learning_rate=0.0,
    warmup_steps=0,
  )
  lm.emb.max_num_shards = lm.softmax.num_shards = 1
  return _params(lm, **train)


def _rnn(**train):
  layers = lingvo_runtime.module('lingvo.tasks.lm.layers')
  lm = layers.RnnLm.CommonParams(
    vocab_size=_VOCAB, emb_dim=8, num_layers=2, rnn_dims=8, rnn_hidden_dims=0
  )
  lm.emb.max_num_shards = 1
  return _params(lm, **train)


_TWENTY_STEPS = {
  'adam': lambda: dict(
    learning_rate=1.0,
    optimizer=optimizer('Adam', beta2=0.98, epsilon=1e-6),
    lr_schedule=schedule('TransformerSchedule', warmup_steps=10, model_dim=8),
    clip_gradient_norm_to_value=0.5,
    l2_regularizer_weight=1e-2,
  ),
  # As in the stock experiments of billions of parameters.
  'adafactor': lambda: dict(
    learning_rate=1.0,
    optimizer=optimizer(
      'XLAShardingAdafactor',
      decay_exponent_pow=0.8,
      clipping_threshold=1.0,
      min_dim_size_to_factor=8,
    ),
    lr_schedule=schedule('SqrtDecay', warmup_steps=10),
  ),
}


@pytest.mark.parametrize('name', _TWENTY_STEPS)
def test_twenty_steps_of_a_transformer(name):
  run = tiny_task.check(
    _transformer(**_TWENTY_STEPS[name]()), _batches(20), loss_tolerance=1e-4
  )
  assert max(run.norms) > 0.5
  assert all(tiny_task.moved(run).values())


def test_gradients_of_recurrent_layers_that_are_scaled_down():
  """As in the stock word-level model, which has 16."""
  fields = dict(
    optimizer=optimizer('Adagrad', initial_accumulator_value=1.0),
    learning_rate=0.2,
    lr_schedule=schedule('Constant'),
  )
  data = _batches(3)
  free = tiny_task.run_lingvo(_rnn(**fields), data)
  run = tiny_task.check(_rnn(max_lstm_gradient_norm=1e-3, **fields), data)
  path = 'lm.rnns.rnn[0].cell.wm'
  distances = [
    np.linalg.norm(r.weights[-1][path] - r.weights[0][path])
    for r in (run, free)
  ]
  assert distances[0] < 0.5 * distances[1]


@pytest.mark.parametrize(
  'fields,field',
  [
    (
      {'optimizer': lambda: optimizer('XLAShardingAdafactor')},
      'task.train.optimizer',
    ),
    (
      {'clip_gradient_single_norm_to_value': lambda: 1.0},
      'task.train.clip_gradient_single_norm_to_value',
    ),
  ],
)
def test_what_goes_by_whole_variables(fields, field):
  """Lingvo's softmax may be in shards, which are one matrix here."""
  params = _transformer(**{name: make() for name, make in fields.items()})
  params.lm.softmax.num_shards = 2
  with pytest.raises(errors.UserError) as error:
    tiny_task.translate(params)
  message = str(error.value)
  assert f'{field} ' in message
  assert 'lm.softmax.weight_0, lm.softmax.weight_1 are one weight' in message
  for name in fields:
    params.train.Set(**{name: getattr(_transformer().train, name)})
  tiny_task.translate(params)


@pytest.mark.parametrize(
  'fields,message',
  [
    (
      {'clip_gradient_norm_to_value': 1.0},
      'not translated together with clip_gradient_norm_to_value',
    ),
    (
      {
        'optimizer': lambda: optimizer(
          'CompositeOptimizer',
          optimizer_map={
            '.*emb': (optimizer('SGD'), 1.0),
            'default_optimizer': (optimizer('SGD'), 1.0),
          },
        )
      },
      'not translated with several optimizers',
    ),
  ],
)
def test_what_such_scaling_does_not_go_with(fields, message):
  made = {k: v() if callable(v) else v for k, v in fields.items()}
  params = _rnn(max_lstm_gradient_norm=16, **made)
  with pytest.raises(errors.UserError) as error:
    tiny_task.translate(params)
  assert 'task.train.max_lstm_gradient_norm' in str(error.value)
  assert message in str(error.value)


def test_scaling_of_layers_that_are_not_there():
  with pytest.raises(errors.UserError, match='no variables below lm.rnns'):
    tiny_task.translate(_transformer(max_lstm_gradient_norm=16))
