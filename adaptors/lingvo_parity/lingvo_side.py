"""Runs the Lingvo task: layers, loss, gradients, metrics and steps.

Random ops return fixed numbers, as they do in bridged tasks here.
"""

import collections
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from adaptors import lingvo_runtime
from adaptors.bridge.functional import fed_task
from adaptors.bridge.ops import fixed_random_ops, function_replacing
from adaptors.lingvo_parity import differences, lingvo_layers
from adaptors.lingvo_parity.results import LayerOutput, Run, Sample, Step
from adaptors.params import params_trees
from pax_compat import errors

# Largest relative difference of two runs without randomness.
_REPEATABLE = 1e-6
_LEARNING_RATE = 'learning_rate/'


def run(
  params: Any,
  first: Mapping[str, np.ndarray],
  batches: Sequence[Mapping[str, np.ndarray]],
  weights: Callable[[Mapping[str, Any]], Mapping[str, np.ndarray]] | None,
  *,
  is_bridged: bool = False,
) -> Run:
  """Runs a task.

  Args:
    params: of the task, with its input.
    first: the batch that layers, gradients and metrics are compared on.
    batches: to train on; arrays by dotted name, as in `first`.
    weights: maps the TensorFlow variables by theta path to initial weights;
      None for Lingvo's initialization.
    is_bridged: whether the translation is bridged: then classes of sampled
      softmaxes are fixed too.
  """
  try:
    return _run(params, first, batches, weights, is_bridged, False)
  except errors.UserError:
    raise
  except Exception as error:
    # Some layers need the shapes of their inputs, such as StarNet.
    if any(_shapes(batch) != _shapes(first) for batch in batches):
      raise
    logging.info('with static shapes, because: %s', errors.one_line(error))
    try:
      return _run(params, first, batches, weights, is_bridged, True)
    except Exception:
      raise error from None


def _shapes(batch: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
  return {path: x.shape for path, x in batch.items()}


def _run(params, first, batches, weights, is_bridged, static_shapes) -> Run:
  tf = lingvo_runtime.module('lingvo.compat')
  recorder = lingvo_layers.Recorder()
  drawn = collections.Counter()
  with contextlib.ExitStack() as stack:

    def prepare(task):
      recorder.watch(task)
      recorder.ops_before = len(tf.get_default_graph().get_operations())
      # From here on: initial weights are random.
      stack.enter_context(_fixed_numbers(is_bridged, drawn))

    made = stack.enter_context(
      fed_task.build(
        params,
        first,
        static_shapes=static_shapes,
        optimized=False,
        prepare=prepare,
      )
    )
    done = _trained(made, recorder, first, batches, weights)
  done.fixed = dict(drawn)
  done.metrics, done.eval_device = _evaluated(
    params,
    first,
    done.weights,
    is_bridged=is_bridged,
    static_shapes=static_shapes,
  )
  return done


@contextlib.contextmanager
def _fixed_numbers(
  is_bridged: bool, drawn: collections.Counter
) -> Iterator[None]:
  """Replaces random numbers by fixed ones, and counts the calls."""
  functions = fixed_random_ops.replacements()
  if is_bridged:
    functions |= fixed_random_ops.samplers()
  tf = lingvo_runtime.module('tensorflow')
  ops = lingvo_runtime.module('tensorflow.python.framework.ops')

  def counted(name, function):
    def call(*args, **kwargs):
      if not tf.executing_eagerly():
        drawn[name.rpartition('.')[2], ops.get_name_scope()] += 1
      return function(*args, **kwargs)

    return call

  with function_replacing.replaced(
    {name: counted(name, function) for name, function in functions.items()}
  ):
    yield


def _trained(made, recorder, first, batches, weights) -> Run:
  tf = lingvo_runtime.module('lingvo.compat')
  task, session, outputs = made.task, made.session, recorder.outputs
  variables = made.variables
  gradients = {
    path: tf.convert_to_tensor(recorder.gradients[variable.name])
    for path, variable in variables.items()
    if variable.name in recorder.gradients
  }
  depends = lingvo_layers.Dependencies(
    tf.get_default_graph(), [o.tensor for o in outputs]
  )
  sampling = _sampling(tf.get_default_graph())
  given = weights(variables) if weights else {}
  made.start()
  for path, value in given.items():
    variables[path].load(value, session)
  done = Run(weights=session.run(variables))
  asked = {
    'layers': [o.tensor for o in outputs],
    'loss': task.loss,
    'gradients': gradients,
    'sample': sampling,
  }
  results = session.run(asked, made.feed_dict(first))
  _mark_random(done, results, session.run(asked, made.feed_dict(first)))
  done.layers = _layers(outputs, results['layers'], depends, task.loss)
  done.random_ops = lingvo_layers.random_ops(
    tf.get_default_graph(), recorder.ops_before
  )
  done.loss = float(results['loss'])
  done.gradients = results['gradients']
  done.sample = Sample(*results['sample']) if sampling else None
  rates = [
    value
    for name, (value, _) in task.eval_metrics.items()
    if name.startswith(_LEARNING_RATE)
  ]
  asked = [task.loss, rates, sampling, task.train_op]
  for batch in batches:
    loss, rate, sample, _ = session.run(asked, made.feed_dict(batch))
    done.steps.append(
      Step(float(loss), float(rate[0]) if len(rate) == 1 else None)
    )
    if sampling:
      done.step_samples.append(Sample(*sample))
  done.last = session.run(variables)
  return done


def _mark_random(done: Run, results: Mapping, again: Mapping):
  """Marks what differs between two runs of the same batch, but for samples.

  Sampled classes are passed on to our side.
  """
  if results['sample']:
    return

  def differs(one, other) -> bool:
    # The order of sums may differ from run to run.
    return differences.of_outputs(one, other) > _REPEATABLE

  layers = zip(results['layers'], again['layers'], strict=True)
  done.random_layers = frozenset(
    i for i, pair in enumerate(layers) if differs(*pair)
  )
  done.random_gradients = frozenset(
    path
    for path, gradient in results['gradients'].items()
    if differs(gradient, again['gradients'][path])
  )
  done.is_random = differs(results['loss'], again['loss'])


def _layers(outputs, values, depends, loss) -> list[LayerOutput]:
  return [
    LayerOutput(
      path=output.path,
      name=output.name,
      value=value,
      followers=tuple(
        j
        for j, other in enumerate(outputs)
        if other.tensor is not output.tensor and depends.of(other.tensor, i)
      ),
      reaches_loss=depends.of(loss, i),
    )
    for i, (output, value) in enumerate(zip(outputs, values, strict=True))
  ]


def _sampling(graph) -> list[Any]:
  """Returns the tensors of the classes that a softmax samples, and counts."""
  ops = lingvo_layers.samplers(graph)
  if len(ops) > 1:
    raise errors.UserError(
      f'{len(ops)} softmaxes sample their classes; expected at most one'
    )
  return [op.outputs[i] for op in ops for i in (0, 2)]


def _evaluated(params, batch, weights, **options) -> tuple[dict, str]:
  """Returns the metrics of a batch at evaluation, by name, and the device.

  Mixtures of experts of GShard are evaluated as on a TPU, as here: there
  Lingvo groups tokens as in training, and not by the rows of the batch.
  """
  params = params.Copy()
  # Some Params leave this to Lingvo's runners.
  params.eval.samples_per_summary = params.eval.samples_per_summary or 1
  for device in ('tpu', 'cpu') if _has_mixtures(params) else ('cpu',):
    try:
      return _metrics(params, batch, weights, device, **options), device
    except Exception as error:  # Some layers cannot be built for a TPU.
      if device == 'cpu':
        raise
      logging.info(
        'evaluated by Lingvo as on a CPU: %s', errors.one_line(error)
      )
  raise AssertionError


def _metrics(
  params, batch, weights, xla_device, *, is_bridged, static_shapes
) -> dict:
  tf = lingvo_runtime.module('lingvo.compat')
  with contextlib.ExitStack() as stack:

    def prepare(task):
      del task
      stack.enter_context(_fixed_numbers(is_bridged, collections.Counter()))

    made = stack.enter_context(
      fed_task.build(
        params,
        batch,
        do_eval=True,
        static_shapes=static_shapes,
        optimized=False,
        xla_device=xla_device,
        prepare=prepare,
      )
    )
    made.start()
    for path, variable in made.variables.items():
      variable.load(weights[path], made.session)
    values = {
      name: tf.convert_to_tensor(value)
      for name, (value, _) in made.task.eval_metrics.items()
    }
    values = {k: v for k, v in values.items() if v.shape.rank == 0}
    found = made.session.run(values, made.feed_dict(batch))
  return {name: float(value) for name, value in found.items()}


def _has_mixtures(params: Any) -> bool:
  """Whether a task has a mixture of experts of GShard."""
  return any(
    (params_trees.get(node, 'e_dim') or 0) > 0
    and (params_trees.get(node, 'moe_hidden_dim') or 0) > 0
    for node in params_trees.all_params(params, without=('input',))
  )
