"""The kinds of language-model tasks against real Lingvo.

Legend: B batch, T time, V vocabulary, D dims.
"""

import functools
import itertools

import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.translate import registry
from adaptors.translate.registry import Translated
from pax_compat import base_layer, errors
from pax_compat.config import REQUIRED, Config
from pax_compat.layers.softmaxes import sequence_losses
from pax_compat.nested_map import NestedMap
from tests.adaptors.translate import parity, task_parity, tiny_task

pytest.importorskip('lingvo')

B, T, V, D = 3, 6, 76, 8
_counter = itertools.count()


def _batch(*, packed=False):
  """Returns a batch whose last example is short, perhaps two in a row."""
  rng = np.random.default_rng(1)
  ids = rng.integers(3, V, [B, T]).astype(np.int32)
  paddings = np.zeros([B, T], np.float32)
  paddings[-1, -2:] = 1
  batch = dict(
    ids=ids,
    labels=np.roll(ids, -1, 1),
    paddings=paddings,
    weights=1 - paddings,
    word_count=np.array([2, 3, 1], np.int32),
  )
  if packed:
    first = np.arange(T) < np.array([[3], [2], [6]])
    counts = paddings == 0
    batch |= dict(
      segment_ids=np.where(first, 1.0, 2.0).astype(np.float32) * counts,
      segment_pos=np.where(first, np.arange(T), np.arange(T) % 3).astype(
        np.int32
      ),
      num_sentences=np.array([2, 2, 1], np.int32),
    )
  return batch


def _params(kind, lm, **fields):
  """Returns Params of a task around a network's."""
  model = lingvo_runtime.module('lingvo.tasks.lm.model')
  inputs = lingvo_runtime.module('lingvo.tasks.lm.input_generator')
  tokenizers = lingvo_runtime.module('lingvo.core.tokenizers')
  # Lingvo takes tasks of one name for the same.
  params = getattr(model, kind).Params()
  params.Set(name=f'lm_{next(_counter)}', lm=lm, **fields)
  params.input = inputs.LmInput.Params().Set(
    tokenizer=tokenizers.AsciiTokenizer.Params().Set(vocab_size=V),
    num_samples=1,
  )
  params.train.Set(
    learning_rate=0.1,
    optimizer=tiny_task.optimizer('Adagrad'),
    lr_schedule=tiny_task.schedule('Constant'),
  )
  return params


def _transformer():
  layers = lingvo_runtime.module('lingvo.tasks.lm.layers')
  lm = layers.TransformerLm.CommonParams(
    model_dim=D,
    hidden_dim=16,
    num_heads=2,
    num_layers=1,
    vocab_size=V,
    residual_dropout_prob=0.0,
    learning_rate=0.0,
    warmup_steps=0,
  )
  lm.emb.max_num_shards = lm.softmax.num_shards = 1
  return lm


def _rnn():
  layers = lingvo_runtime.module('lingvo.tasks.lm.layers')
  lm = layers.RnnLm.CommonParams(
    vocab_size=V, emb_dim=D, num_layers=2, rnn_dims=D, rnn_hidden_dims=0
  )
  lm.emb.max_num_shards = 1
  return lm


def _conditional_rnn():
  layers = lingvo_runtime.module('lingvo.tasks.lm.layers')
  lm = layers.ConditionalRnnLm.Params().Set(vocab_size=V, condition_dim=2)
  lm.emb.Set(vocab_size=V, embedding_dim=D)
  lm.rnns.cell_tpl.Set(num_input_nodes=D + 2, num_output_nodes=D)
  lm.softmax.Set(input_dim=D, num_classes=V)
  return lm


def _gpipe(batch_major):
  """Returns Params of GPipe's network in one of its two layouts."""
  layers = lingvo_runtime.module('lingvo.tasks.lm.layers')
  lm = layers.GPipeTransformerLm.CommonParams(
    vocab_size=V,
    model_dim=D,
    hidden_dim=16,
    num_heads=2,
    num_layers=2,
    splits=[1, 2],
    num_shards=2,
  )
  if batch_major:
    return lm
  gpipe = lingvo_runtime.module('lingvo.core.layers_with_gpipe')
  stack = gpipe.GPipeTransformerStack.Params()
  for name in ('num_encoder_layers', 'splits'):
    stack.Set(**{name: lm.stack.Get(name)})
  stack.emb_tpl.token_emb = lm.stack.emb_tpl.token_emb.Copy()
  stack.emb_tpl.position_emb = lm.stack.emb_tpl.position_emb.Copy()
  stack.softmax_tpl.Set(input_dim=D, num_classes=V, num_shards=2)
  encoder = stack.encoder_tpl
  encoder.Set(source_dim=D, mask_self_atten=True)
  encoder.tr_atten_tpl.num_attention_heads = 2
  encoder.tr_fflayer_tpl.hidden_dim = 16
  return lm.Set(stack=stack)


def test_inputs_of_a_fixed_shape():
  """Trained for a step: at evaluation Lingvo cannot trim such batches."""
  params = _params('FixedShapeInputLanguageModel', _transformer())
  run = tiny_task.check(params, [NestedMap(_batch())] * 2, loss_tolerance=1e-5)
  assert all(tiny_task.moved(run).values())


def test_packed_examples_of_recurrent_layers():
  params = _params('LanguageModel', _rnn(), packed_input=True)
  batch = _batch(packed=True)
  theirs, _ = task_parity.check_evaluation(params, batch)
  assert theirs.metrics['num_words'] == (6 + 5, 1)


@pytest.mark.slow
def test_gpipe_with_time_first():
  lm = _gpipe(batch_major=False)
  lm.stack.normalize_encoder = True
  params = _params('LanguageModel', lm)
  theirs, _ = task_parity.check_evaluation(params, _batch())
  norms = [k for k in theirs.weights if 'encoder_1.layer_norm' in k]
  assert len(norms) == 2


@functools.cache
def _own_lm():
  """Returns a user's network in Lingvo, which takes packed examples."""
  tf = lingvo_runtime.module('lingvo.compat')
  core = lingvo_runtime.module('lingvo.core.layers')
  lm_layers = lingvo_runtime.module('lingvo.tasks.lm.layers')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')

  class OwnLm(lm_layers.BaseLanguageModel):
    """Predicts from a token and its position."""

    @classmethod
    def Params(cls):
      p = super().Params()
      p.Define('emb', core.SimpleEmbeddingLayer.Params(), 'Of tokens.')
      p.Define('pos', core.PositionalEmbeddingLayer.Params(), 'Positions.')
      p.Define('softmax', core.SimpleFullSoftmax.Params(), 'Softmax.')
      p.Set(name='own', vocab_size=V)
      p.emb.Set(vocab_size=V, embedding_dim=D)
      p.pos.embedding_dim = D
      p.softmax.Set(input_dim=D, num_classes=V)
      return p

    def __init__(self, params):
      super().__init__(params)
      for name in ('emb', 'pos', 'softmax'):
        self.CreateChild(name, self.params.Get(name))

    def zero_state(self, theta, batch_size):
      return py_utils.NestedMap()

    def FProp(
      self, theta, ids, paddings, state0, labels, segment_ids, segment_pos
    ):
      x = self.emb.EmbLookup(theta.emb, ids)
      x += self.pos.FPropWithPosition(theta.pos, segment_pos)
      x *= tf.expand_dims(segment_ids, -1)
      return self.softmax.FProp(
        theta.softmax,
        x,
        class_weights=labels.class_weights,
        class_ids=labels.class_ids,
      ), state0

  registry.translates(f'{__name__}._own_lm.<locals>.OwnLm')(_translate_own)
  return OwnLm


class Own(base_layer.BaseLayer):
  """The same here.

  Attributes:
    emb_tpl: of tokens.
    pos_tpl: of positions.
    softmax_tpl: the softmax.
    packed_input: whether examples are packed.
  """

  emb_tpl: Config = REQUIRED
  pos_tpl: Config = REQUIRED
  softmax_tpl: Config = REQUIRED
  packed_input: bool = False

  def setup(self):
    for name in ('emb', 'pos', 'softmax'):
      self.create_child(name, getattr(self, f'{name}_tpl'))

  def __call__(self, ids, paddings, labels, segment_ids, segment_pos):
    del paddings
    x = (self.emb(ids) + self.pos(position=segment_pos)) * segment_ids[
      ..., None
    ]
    return sequence_losses.xent(self.softmax, x, labels)


def _translate_own(view):
  view.get('vocab_size'), view.get('packed_input')
  parts = {
    n: registry.translate(view.child(n)) for n in ('emb', 'pos', 'softmax')
  }
  config = Own.config(
    **{f'{name}_tpl': part.config for name, part in parts.items()},
  )
  variables = [parts[n].variables.under(n, n) for n in ('emb', 'softmax')]
  return Translated(config, variables[0] + variables[1])


def test_a_packed_network_of_the_user():
  params = _params('PackedBatchMajorLanguageModel', _own_lm().Params())
  batch = _batch(packed=True)
  theirs = task_parity.evaluate_in_lingvo(params, batch)
  assert theirs.metrics.pop('aux_loss')[0] == 0
  assert theirs.metrics['num_words'] == (6 + 5, 1)
  ours = task_parity.Ours.create(params, batch, theirs.weights)
  task_parity.check_metrics(ours, batch, theirs)
  with base_layer.eval_mode():
    parity.assert_gradients_close(ours.gradients(batch), theirs.gradients)


@pytest.mark.parametrize(
  'kind,lm,fields,message',
  [
    (
      'LanguageModel',
      _transformer,
      dict(packed_input=True),
      'task.packed_input (lingvo.tasks.lm.model.LanguageModel): in Lingvo'
      ' TransformerLm takes no packing',
    ),
    (
      'LanguageModel',
      _conditional_rnn,
      {},
      'ConditionalRnnLm takes a condition, but is given none',
    ),
    (
      'BatchMajorLanguageModel',
      _rnn,
      {},
      'RnnLm takes [time, batch], but is given [batch, time]',
    ),
    (
      'BatchMajorLanguageModel',
      lambda: _gpipe(batch_major=False),
      {},
      'GPipeTransformerLm takes [time, batch]',
    ),
    (
      'FixedShapeInputLanguageModel',
      lambda: _gpipe(batch_major=True),
      {},
      'GPipeTransformerLm takes [batch, time]',
    ),
    (
      'BatchMajorLanguageModel',
      lambda: _gpipe(batch_major=True),
      dict(packed_input=True),
      'task.packed_input',
    ),
    (
      'PackedBatchMajorLanguageModel',
      lambda: _gpipe(batch_major=True),
      {},
      'in Lingvo GPipeTransformerLm takes no segment_pos',
    ),
    (
      'PackedBatchMajorLanguageModel',
      lambda: _own_lm().Params(),
      dict(aux_loss_weight=0.1),
      'task.aux_loss_weight',
    ),
  ],
)
def test_what_does_not_go_together(kind, lm, fields, message):
  with pytest.raises(errors.UserError) as error:
    tiny_task.translate(_params(kind, lm(), **fields))
  assert message in str(error.value)
