"""The stock word-level language models at reduced size, in Lingvo and here.

Legend: B batch, T time, V vocabulary, S sampled classes.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptors import lingvo_runtime
from adaptors.lingvo_parity import given_samples
from adaptors.params.text import reader
from adaptors.translate.tasks import single as task_translation
from pax_compat import base_layer, learners
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning, program
from tests.adaptors.translate import parity, tensorflow_samples, tiny_task

_NAMES = [
  'WordLevelOneBwdsSimpleSampledSoftmax',
  'WordLevelOneBwdsSimpleSampledSoftmaxTiny',
]
B, T, V, S = 3, 6, 96, 10
_STEPS = 20
_DIMS, _HIDDEN = 7, 12
_LSTM_NORM = 0.5
# Of the softmax's samples; the graph's is that of `lingvo_fed_task`.
_SEED, _GRAPH_SEED = 42, 1


def _full_size(shared_data, name):
  pytest.importorskip('lingvo')
  path = shared_data / 'lingvo_stock'
  path /= f'lm.one_billion_wds.{name}.trainer_params.pbtxt.gz'
  return reader.read_file(path).params.task


@pytest.fixture(params=_NAMES)
def task_params(shared_data, request):
  """Params of an experiment: small, and with nothing random but samples."""
  params = _full_size(shared_data, request.param)
  lm = params.lm
  lm.vocab_size = V
  lm.emb.Set(vocab_size=V, embedding_dim=_DIMS)
  lm.softmax.Set(
    num_classes=V, input_dim=_DIMS, num_sampled=S, random_seed=_SEED
  )
  for cell in lm.rnns.cell_tpl:
    cell.Set(
      num_input_nodes=_DIMS, num_output_nodes=_DIMS, num_hidden_nodes=_HIDDEN
    )
  lm.embedding_dropout_keep_prob = lm.rnns.dropout.keep_prob = 1.0
  # Lower, so that it has an effect at this size.
  assert params.train.max_lstm_gradient_norm == 16
  params.train.max_lstm_gradient_norm = _LSTM_NORM
  inputs = lingvo_runtime.module('lingvo.tasks.lm.input_generator')
  tokenizers = lingvo_runtime.module('lingvo.core.tokenizers')
  params.input = inputs.LmInput.Params().Set(
    tokenizer=tokenizers.AsciiTokenizer.Params().Set(vocab_size=V)
  )
  return params


def _batches(count):
  rng = np.random.default_rng(1)
  batches = []
  for _ in range(count):
    # Frequent words come first, as in a vocabulary.
    ids = (V ** rng.uniform(0, 1, [B, T + 1])).astype(np.int32)
    paddings = np.zeros([B, T], np.float32)
    paddings[0, -2:] = 1
    batches.append(
      NestedMap(
        ids=ids[:, :-1],
        labels=ids[:, 1:],
        paddings=paddings,
        weights=1 - paddings,
        word_count=np.full([B], 2, np.int32),
      )
    )
  return batches


def _samples(count):
  """Returns the samples that Lingvo's graph draws one after the other."""
  tf = lingvo_runtime.module('lingvo.compat')
  with tf.Graph().as_default(), tf.Session() as session:
    tf.random.set_seed(_GRAPH_SEED)
    op = tensorflow_samples.sampler(S, V, _SEED)
    return [session.run(op) for _ in range(count)]


def _start(task_params, samples, first, batch):
  """Returns the translation, the program, and the initial state."""
  translated = task_translation.translate_task(task_params, 'stock')
  lm = translated.config.model.lm_tpl
  lm.softmax_tpl = given_samples.given(lm.softmax_tpl, samples)
  made = program.create(
    translated.config.Instantiate(), partitioning.create_mesh(None, None), batch
  )
  state = made.init_state(batch)
  weights = jax.tree.map(jnp.asarray, translated.variables.to_jax(first))
  variables = {**state.mdl_vars, base_layer.PARAMS: weights}
  assert jax.tree.map(jnp.shape, variables) == jax.tree.map(
    jnp.shape, state.mdl_vars
  )
  return translated, made, state.replace(mdl_vars=variables)


def test_twenty_steps(task_params):
  data = _batches(_STEPS)
  theirs = tiny_task.run_lingvo(task_params, data)
  translated, made, state = _start(
    task_params, _samples(_STEPS), theirs.weights[0], data[0]
  )
  before = theirs.weights[0]
  for step, batch in enumerate(data):
    state, metrics = made.train_step(state, batch)
    for name, wanted, tolerance in (
      ('loss', theirs.losses, 1e-5 if step == 0 else 1e-4),
      ('learning/lr', theirs.rates, 1e-6),
      ('learning/raw_grad_norm', theirs.norms, 1e-4),
    ):
      what = f'{name} of step {step}'
      parity.assert_close(
        metrics[name], np.float32(wanted[step]), tolerance, what
      )
    weights = translated.variables.to_lingvo(
      learners.by_path(state.mdl_vars[base_layer.PARAMS])
    )
    assert set(weights) == set(theirs.weights[0])
    if step == 0:
      # With Adagrad, a gradient determines the update of a weight.
      parity.assert_gradients_close(
        {k: weights[k] - v for k, v in before.items()},
        {k: theirs.weights[1][k] - v for k, v in before.items()},
      )
  for path, value in theirs.weights[-1].items():
    parity.assert_close(weights[path], value, 1e-4, path)
  assert all(tiny_task.moved(theirs).values())


def test_evaluation(task_params):
  """The network, whose softmax is then over all classes."""
  tf = lingvo_runtime.module('tensorflow')
  nested_map = lingvo_runtime.module('lingvo.core.py_utils').NestedMap
  (batch,) = _batches(1)
  params = task_params.lm.Copy().Set(
    name=f'lm_{task_params.lm.softmax.num_shards}'
  )
  names = ('avg_xent', 'total_xent', 'logits', 'last_hidden')

  def fprop(layer, theta, ids, paddings):
    output, _ = layer.FProp(
      theta,
      tf.transpose(ids),
      tf.transpose(paddings),
      layer.zero_state(theta, B),
      nested_map(class_ids=batch.labels.T, class_weights=batch.weights.T),
    )
    result = {name: output[name] for name in names}
    result['logits'] = tf.reshape(output.logits, [T, B, V])
    for name in ('logits', 'last_hidden'):
      result[name] = tf.transpose(result[name], [1, 0, 2])
    return result

  def call(layer, ids, paddings):
    labels = NestedMap(class_ids=batch.labels, class_weights=batch.weights)
    output = layer(ids, paddings, labels)
    return {name: output[name] for name in names}

  parity.check_layer(
    params, [batch.ids, batch.paddings], fprop=fprop, call=call
  )


@pytest.mark.parametrize(
  ('name', 'dims', 'hidden'), [(_NAMES[0], 1024, 8192), (_NAMES[1], 7, 32)]
)
def test_variables_at_full_size(shared_data, name, dims, hidden):
  """From shapes alone."""
  translated = task_translation.translate_task(
    _full_size(shared_data, name), name
  )
  batch = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), _batches(1)[0]
  )
  made = program.create(
    translated.config.Instantiate(), partitioning.create_mesh(None, None), batch
  )
  params = learners.by_path(made.abstract_state.mdl_vars[base_layer.PARAMS])
  classes, gates = 793_472, 4 * hidden
  cell = {'wm': (2 * dims, gates), 'b': (gates,), 'w_proj': (hidden, dims)}
  assert {path: value.shape for path, value in params.items()} == {
    'lm/embedding/emb_var': (classes, dims),
    'lm/softmax/w': (classes, dims),
    'lm/softmax/b': (classes,),
    **{
      f'lm/rnns/frnn_{i}/cell/{weight}': shape
      for i in range(2)
      for weight, shape in cell.items()
    },
  }
  assert {variable.jax for variable in translated.variables} == set(params)
