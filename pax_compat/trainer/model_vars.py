"""Restores the model's variables of a checkpoint, without the learner's state.

For programs that use a trained model:

    stored = checkpoints.StoredCheckpoint(f'{job_log_dir}/checkpoints')
    mdl_vars = model_vars.restore(task_program, stored)
"""

from typing import Any

import jax

from pax_compat import checkpoints
from pax_compat.trainer import program


def restore(
  task_program: program.TaskProgram,
  stored: checkpoints.StoredCheckpoint,
  *,
  use_ema: bool = False,
) -> Any:
  """Returns the model's variables, sharded over the program's mesh.

  Only arrays that they are made of are read: for moving averages those, and
  variables without one.

  Args:
    task_program: of the task.
    stored: the checkpoint.
    use_ema: whether variables are replaced by their moving averages.

  Raises:
    UserError: the checkpoint does not fit the task; or there are no averages.
  """
  state = task_program.abstract_state
  paths = checkpoints.state_paths(state)
  structure = jax.tree.structure(state)
  traced = jax.make_jaxpr(lambda s: task_program.eval_vars(s, use_ema=use_ema))(
    state
  ).jaxpr
  used = {
    id(x)
    for x in (*traced.outvars, *(v for e in traced.eqns for v in e.invars))
  }
  needed = {
    path: leaf
    for (path, leaf), x in zip(paths.items(), traced.invars, strict=True)
    if id(x) in used
  }

  def eval_vars(leaves):
    # The leaves that are not needed are shapes, which nothing uses.
    every = [leaves.get(path, leaf) for path, leaf in paths.items()]
    whole = jax.tree.unflatten(structure, every)
    return task_program.eval_vars(whole, use_ema=use_ema)

  read = stored.read(needed)
  if not use_ema:
    return eval_vars(read)
  shardings = jax.tree.map(lambda x: x.sharding, state.mdl_vars)
  return jax.jit(eval_vars, out_shardings=shardings)(read)
