"""`--mode=infer`: the outputs of a user's runner for each example, on disk.

    infer_out/<dataset>/step_<step>/output-00003-of-00032.jsonl

Shapes: B batch of all processes together.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import logging

from pax_compat import base_inference_runner, base_layer, errors, tasks_lib
from pax_compat import config as config_lib
from pax_compat.checkpoints import state_paths
from pax_compat.jobs import opening, reading, shards
from pax_compat.nested_map import NestedMap
from pax_compat.processes import joint_failure
from pax_compat.runs import mirror
from pax_compat.trainer import partitioning, program, train_state
from pax_compat.trainer.evaluating import batch_results, evaluation, gathering

# The examples that a batch has, by path.
_Rows = dict[str, np.ndarray]


def run(opened: opening.Opened, *, print_line: Callable[[str], None]):
  """Writes the outputs of all decode datasets, for one checkpoint or several.

  Args:
    opened: what the job needs.
    print_line: prints a line for the user.

  Raises:
    UserError: the task has no runner, its outputs differ from its schema, or a
      checkpoint cannot be used.
    stopping.Interrupted: the job is to stop. Files of datasets that are not
      complete are not written.
  """
  inference = _Inference(opened.program)
  with mirror.Mirror(opened.folder) as grown:
    for step in opened.job.steps or (opening.newest(opened.watch),):
      mdl_vars = reading.read(opened.program, opened.watch, step)
      for name, data in opened.data.decode.items():
        folder = grown.local / 'infer_out' / name / f'step_{step}'
        with inference.writer(folder) as writer:
          inference.run(data, step, mdl_vars, writer, opened.stop)
        print_line(
          f'step {step}  infer {name}: {writer.count} examples in'
          f' {opened.folder / folder.relative_to(grown.local)}'
        )


class _Inference:
  """A task's runner, compiled."""

  def __init__(self, task_program: program.TaskProgram):
    """Builds the runner.

    Args:
      task_program: has the task and the model.

    Raises:
      UserError: the task has no runner.
    """
    self._program = task_program
    self._settings = settings(task_program.task)
    config = self._settings.inference_runner
    self._runner: base_inference_runner.BaseInferenceRunner = (
      config.Instantiate(model=task_program.model)
    )
    self._schema = _schema(self._runner)
    self._step = jax.jit(
      self._infer, out_shardings=partitioning.replicated(task_program.mesh)
    )

  def writer(self, folder: Any) -> shards.Shards:
    """Returns a writer of the outputs."""
    return shards.Shards(
      folder,
      count=self._settings.output_num_shards,
      kind=self._settings.output_format,
    )

  def run(self, data, step: int, mdl_vars, writer: shards.Shards, stop):
    """Writes the outputs of a dataset; all processes call it together.

    Args:
      data: the input.
      step: the number of train steps of the variables.
      mdl_vars: the variables.
      writer: takes the outputs of the examples that have a weight.
      stop: called between batches; returns whether to stop.
    """
    steps_made = np.int32(step)

    def take(batch, outputs):
      rows = gathering.examples(batch, self._program.batch_sharding)
      if jax.process_index():
        return
      arrays = _checked(self._schema, jax.device_get(outputs), len(rows.counts))
      for row in np.flatnonzero(rows.counts):
        host = {path: x[row] for path, x in rows.host.items()}
        writer.write({p: x[row] for p, x in arrays.items()}, host)

    failure = joint_failure.JointFailure(f'inference of {data.name!r}')
    count = batch_results.one_late(
      evaluation.all_batches(data, self._program.put, stop, failure),
      lambda n, batch: self._step(
        steps_made, mdl_vars, batch.arrays, np.uint32(n)
      ),
      take,
      failure=failure,
    )
    logging.info('inferred %r in %d batches', data.name, count)

  def _infer(self, step, mdl_vars, batch, number):
    key = jax.random.fold_in(
      jax.random.key(self._program.task.infer.random_seed), number
    )
    state = train_state.TrainState(step=step, mdl_vars=mdl_vars, opt_state={})
    mesh = self._program.mesh.abstract_mesh
    with base_layer.eval_mode(), jax.sharding.use_abstract_mesh(mesh):
      outputs = self._runner.infer(
        state, key, self._program.weight_metas, batch
      )
    return state_paths(outputs)


def settings(task: tasks_lib.SingleTask) -> tasks_lib.InferWriter:
  """Returns a task's settings of inference.

  Raises:
    UserError: it has no runner.
  """
  writer = task.create_infer_writer()
  runner = writer and writer.inference_runner
  if not isinstance(runner, config_lib.Config):
    raise errors.UserError(
      '--mode=infer: the task has no inference runner; expected'
      ' task.infer_writer = InferWriter.config(inference_runner='
      'MyRunner.config()), where MyRunner is a'
      ' base_inference_runner.BaseInferenceRunner'
    )
  return writer


def _schema(
  runner: base_inference_runner.BaseInferenceRunner,
) -> dict[str, jax.ShapeDtypeStruct]:
  """Returns the runner's schema by dotted path."""
  name = type(runner).__name__
  found = state_paths(NestedMap(runner.output_schema))
  for path, leaf in found.items():
    if not hasattr(leaf, 'shape') or not hasattr(leaf, 'dtype'):
      raise errors.UserError(
        f'{name}.output_schema.{path} is {leaf!r}; expected a shape and a'
        ' dtype, such as jax.ShapeDtypeStruct([512], np.float32)'
      )
  return {
    path: jax.ShapeDtypeStruct(leaf.shape, np.dtype(leaf.dtype))
    for path, leaf in found.items()
  }


def _checked(schema, outputs: _Rows, rows: int) -> _Rows:
  """Returns the outputs; they must have the schema, and B rows."""
  lines = []
  for path in sorted(schema.keys() | outputs.keys()):
    wanted = found = 'nothing'
    if path in schema:
      spec = schema[path]
      wanted = _type_text((rows, *spec.shape), spec.dtype)
    if path in outputs:
      found = _type_text(outputs[path].shape, outputs[path].dtype)
    if wanted != found:
      lines.append(f'{path}: expected {wanted}, got {found}')
  if lines:
    raise errors.UserError(
      f'infer() returns other outputs than output_schema, of {rows} examples:'
      '\n  ' + '\n  '.join(lines)
    )
  return outputs


def _type_text(shape, dtype) -> str:
  return f'{np.dtype(dtype).name}[{",".join(map(str, shape))}]'
