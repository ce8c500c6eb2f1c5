"""Whether a loss uses the weights of a batch, which padding rows need.

A batch whose rows the devices do not divide is padded with rows of weight 0. If
the loss is a mean over all rows, whatever their weights, such rows would change
it. So the traced loss is searched for its inputs.
"""

from typing import Any

import jax
from jax.interpreters import partial_eval

from pax_compat import errors
from pax_compat.input_core import example_rows
from pax_compat.nested_map import NestedMap
from pax_compat.trainer import partitioning


class Check:
  """Checks that padding rows of batches do not count, once per structure."""

  def __init__(self, task_program: Any):
    """Traces nothing yet.

    Args:
      task_program: the `TaskProgram`.
    """
    self._program = task_program
    self._checked = set()

  def __call__(self, batch: NestedMap):
    """Checks the loss of a batch.

    Args:
      batch: a batch of this process, or its shapes.

    Raises:
      UserError: it has padding rows, and its loss does not use weights.
    """
    sharding = self._program.batch_sharding
    added = partitioning.num_padding_rows(batch, sharding)
    structure = jax.tree.structure(batch)
    if not added or structure in self._checked:
      return
    if self._program.learner.stochastic_gradient is not None:
      raise errors.UserError(
        f'a batch of {example_rows.num_rows(batch)} rows cannot be divided over'
        ' the devices, and cannot be padded: the learner has a'
        ' stochastic_gradient, which would count rows of padding as examples;'
        f' expected a multiple of {example_rows.num_rows(batch) + added} rows'
      )
    if not uses_weights(self._program, partitioning.padded(batch, sharding)):
      rows = example_rows.num_rows(batch)
      shards = sharding.num_shards // sharding.num_infeed_hosts
      raise errors.UserError(
        f'a batch of {rows} rows cannot be divided over {shards} device(s) of'
        ' this process, and cannot be padded: the loss of'
        f' {type(self._program.model).__name__} uses neither weights nor'
        ' paddings of the batch (eval_sample_weights, weights, paddings);'
        f' expected a batch size that is a multiple of {shards}'
      )
    self._checked.add(structure)


def uses_weights(task_program: Any, batch: NestedMap) -> bool:
  """Returns whether the loss of a batch depends on its weights or paddings.

  Args:
    task_program: the `TaskProgram`.
    batch: arrays or their shapes.
  """

  def loss(batch, variables, key):
    return task_program.forward(variables, batch, key)[0]

  def shapes(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)

  with jax.sharding.use_abstract_mesh(task_program.mesh.abstract_mesh):
    jaxpr = jax.make_jaxpr(loss)(
      shapes(batch),
      shapes(task_program.abstract_state.mdl_vars),
      jax.eval_shape(lambda: jax.random.key(0)),
    ).jaxpr
  return _use_weights(jaxpr, jaxpr.outvars, batch, jaxpr.invars)


def eval_loss_uses_weights(traced: jax.stages.Traced, loss_name: str) -> bool:
  """Returns whether an evaluated loss depends on weights or paddings.

  Args:
    traced: the evaluation step, a function of variables, a batch and a number.
    loss_name: name of the loss among the metrics.
  """
  jaxpr = traced.jaxpr.jaxpr
  (_, batch, _), _ = traced.args_info
  variables = jax.tree.unflatten(
    jax.tree.structure(traced.args_info), jaxpr.invars
  )
  outputs = jax.tree.unflatten(
    jax.tree.structure(traced.out_info), jaxpr.outvars
  )
  return _use_weights(
    jaxpr,
    jax.tree.leaves(outputs.weighted[loss_name]),
    batch,
    jax.tree.leaves(variables[0][1]),
  )


def _use_weights(
  jaxpr: Any, results: list[Any], batch: NestedMap, leaves: list[Any]
) -> bool:
  """Returns whether variables of a jaxpr depend on weights of a batch.

  Args:
    jaxpr: the computation.
    results: variables that it computes.
    batch: the batch.
    leaves: the variables of its leaves, of which there may be more.
  """
  wanted = set(map(id, results))
  # Also within functions that are jitted or rematerialized.
  _, used = partial_eval.dce_jaxpr(
    jaxpr, [id(var) in wanted for var in jaxpr.outvars]
  )
  needed = {
    id(var) for var, is_used in zip(jaxpr.invars, used, strict=True) if is_used
  }
  paths, _ = jax.tree.flatten_with_path(batch)
  return any(
    id(var) in needed
    and (example_rows.is_weight(path) or example_rows.is_padding(path))
    for (path, _), var in zip(paths, leaves, strict=False)
  )
