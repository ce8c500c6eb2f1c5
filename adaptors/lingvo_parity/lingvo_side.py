"""Runs the Lingvo task: layers, loss, gradients, metrics and steps."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from adaptors import lingvo_runtime
from adaptors.bridge.functional import fed_task
from adaptors.lingvo_parity import lingvo_layers
from adaptors.lingvo_parity.results import LayerOutput, Run, Sample, Step
from pax_compat import errors

_LEARNING_RATE = 'learning_rate/'


def run(
  params: Any,
  first: Mapping[str, np.ndarray],
  batches: Sequence[Mapping[str, np.ndarray]],
  weights: Callable[[Mapping[str, Any]], Mapping[str, np.ndarray]] | None,
) -> Run:
  """Runs a task.

  Args:
    params: of the task, with its input.
    first: the batch that layers, gradients and metrics are compared on.
    batches: to train on; arrays by dotted name, as in `first`.
    weights: maps the TensorFlow variables by theta path to initial weights;
      None for Lingvo's initialization.
  """
  recorder = lingvo_layers.Recorder()
  with fed_task.build(params, first, prepare=recorder.watch) as made:
    done = _trained(made, recorder, first, batches, weights)
  done.metrics = _evaluated(params, first, done.weights)
  return done


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
  results = session.run(
    {
      'layers': [o.tensor for o in outputs],
      'loss': task.loss,
      'gradients': gradients,
      'sample': sampling,
    },
    made.feed_dict(first),
  )
  done.layers = _layers(outputs, results['layers'], depends, task.loss)
  done.is_random = depends.is_random(task.loss)
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


def _evaluated(params, batch, weights) -> dict[str, float]:
  """Returns the metrics of a batch at evaluation, by name."""
  tf = lingvo_runtime.module('lingvo.compat')
  params = params.Copy()
  # Some Params leave this to Lingvo's runners.
  params.eval.samples_per_summary = params.eval.samples_per_summary or 1
  with fed_task.build(params, batch, do_eval=True) as made:
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
