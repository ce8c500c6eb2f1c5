"""The start of a new run with values of other checkpoints."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging

from pax_compat import base_layer, checkpoints, errors
from pax_compat.tasks import loading_rules, task_settings
from pax_compat.trainer import program
from pax_compat.warm_start import matching, opening, optimizer_state, sources
from pax_compat.warm_start.sources import Request

# The report, in the folder of the run.
FILE = 'warm_start.txt'
_VARIABLES, _OPT_STATE = 'mdl_vars/', 'opt_state/'
_OPT_RULES = 'opt_states/'


def of_task(train: task_settings.Train) -> 'Start | None':
  """Returns the start that a task asks for; None for new weights.

  Args:
    train: its settings: `init_from_checkpoint_rules`, or
      `external_checkpoint_path`, of which everything is loaded.

  Raises:
    UserError: a checkpoint does not exist, or cannot be read.
  """
  rules = dict(train.init_from_checkpoint_rules)
  if train.external_checkpoint_path is not None:
    rules[str(train.external_checkpoint_path)] = (
      loading_rules.CheckpointLoadingRules(load_step=True, load_opt_states=True)
    )
  return Start(rules) if rules else None


@dataclasses.dataclass
class _Opened:
  rules: loading_rules.CheckpointLoadingRules
  source: sources.Source
  used: set[str] = dataclasses.field(default_factory=set)


class Start:
  """The start of a new run; see `base_experiment.Start`.

  Attributes:
    step: that of the first checkpoint with `load_step`; else 0.
    report: what was loaded, what was not, and what of the checkpoints was not
      used; after `state`.
  """

  def __init__(self, rules: Mapping[str, loading_rules.CheckpointLoadingRules]):
    """Opens the checkpoints.

    Args:
      rules: by path of the checkpoint.

    Raises:
      UserError: one does not exist, or cannot be read.
    """
    self._opened = [
      _Opened(one, opening.open_checkpoint(path, one.step))
      for path, one in rules.items()
    ]
    self.step = 0
    self.report = ''
    for one in reversed(self._opened):
      if one.rules.load_step:
        if one.source.step is None:
          raise errors.UserError(
            f'{loading_rules.FIELD}: load_step, and {one.source.path} has no'
            ' step'
          )
        self.step = one.source.step
    self._lines: list[str] = []

  def __str__(self) -> str:
    names = ', '.join(one.source.path for one in self._opened)
    return f'values of {names}; {FILE} lists them'

  def state(self, task_program: program.TaskProgram, batch: Any) -> Any:
    """Returns the initial state with the loaded values.

    Arrays that are loaded are not initialized.

    Args:
      task_program: of the task.
      batch: a batch of this process, or its shapes.

    Raises:
      UserError: rules, checkpoints and task do not fit.
    """
    wanted = _by_name(task_program.abstract_state)
    leaves, origins = self._variables(wanted)
    rest = [
      name
      for name in wanted
      if name.startswith(_VARIABLES) and name not in leaves
    ]
    leaves |= _initial(task_program, batch, rest)
    structure = jax.tree.structure(task_program.abstract_state.mdl_vars)
    mdl_vars = jax.tree.unflatten(
      structure, [leaves[n] for n in wanted if n.startswith(_VARIABLES)]
    )
    opt_leaves = self._opt_state(task_program, wanted, mdl_vars, origins)
    step = wanted['step']
    state = program.TrainState(
      step=jax.device_put(jnp.asarray(self.step, step.dtype), step.sharding),
      mdl_vars=mdl_vars,
      opt_state=jax.tree.unflatten(
        jax.tree.structure(task_program.abstract_state.opt_state),
        [opt_leaves[n] for n in wanted if n.startswith(_OPT_STATE)],
      ),
    )
    self.report = self._reported(wanted, origins)
    for line in self.report.splitlines():
      logging.info('%s', line)
    return jax.block_until_ready(state)

  def _variables(self, wanted) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the loaded variables, and their origins by name."""
    names = [n.removeprefix(_VARIABLES) for n in wanted if _is_variable(n)]
    opt_names = [
      _OPT_RULES + n.removeprefix(_OPT_STATE)
      for n in wanted
      if n.startswith(_OPT_STATE)
    ]
    leaves, origins = {}, {}
    for one in self._opened:
      partial = one.rules.partial_load_opt_states
      done = {_rule_name(target): origin for target, origin in origins.items()}
      match = matching.match(
        one.rules,
        [*names, *(opt_names if partial else ())],
        one.source,
        done=done,
      )
      requests = {}
      for name, array in match.found.items():
        target = _target(name)
        requests[target] = Request(array, wanted[target])
      sources.check_fits(one.source, requests, 'expected ignore_rules for them')
      leaves |= one.source.read(requests)
      one.used |= {request.name for request in requests.values()}
      for target, request in requests.items():
        origins[target] = f'{request.name} of {one.source.path}'
      for pattern in match.unmatched:
        text = f'{loading_rules.FIELD}: {pattern} matches no variable'
        logging.warning('%s', text)
        self._lines.append(f'warning: {text}')
    self._partial = {
      target: leaf
      for target, leaf in leaves.items()
      if not _is_variable(target)
    }
    return {t: x for t, x in leaves.items() if _is_variable(t)}, origins

  def _opt_state(self, task_program, wanted, mdl_vars, origins):
    """Returns the leaves of the learner's state by name."""
    own = {n: x for n, x in wanted.items() if n.startswith(_OPT_STATE)}
    for one in self._opened:
      if not one.rules.load_opt_states or one.rules.partial_load_opt_states:
        continue
      loading = optimizer_state.plan(
        one.source, own, task_program.task.train.learner
      )
      one.used |= {request.name for request in loading.requests.values()}
      for target, request in loading.requests.items():
        origins[target] = f'{request.name} of {one.source.path}'
      return optimizer_state.read(one.source, loading)
    shardings = jax.tree.map(
      lambda x: x.sharding, task_program.abstract_state.opt_state
    )

    def init(variables):
      return task_program.learner.init(
        variables[base_layer.PARAMS],
        weight_metas=task_program.weight_metas,
        variables=variables,
      )

    with jax.set_mesh(task_program.mesh):
      made = jax.jit(init, out_shardings=shardings)(mdl_vars)
    leaves = dict(zip(own, jax.tree.leaves(made), strict=True))
    return leaves | self._partial

  def _reported(self, wanted, origins) -> str:
    variables = [name for name in wanted if _is_variable(name)]
    loaded = [name for name in variables if name in origins]
    lines = [
      f'{len(loaded)} of {len(variables)} variables are loaded; the run starts'
      f' at step {self.step}',
      *self._lines,
    ]
    slots = [n for n in origins if not _is_variable(n)]
    lines += [f'loaded  {_rule_name(n)} from {origins[n]}' for n in loaded]
    lines += [f'loaded  {_rule_name(n)} from {origins[n]}' for n in slots]
    lines += [f'initial {_rule_name(n)}' for n in variables if n not in origins]
    if not slots:
      lines.append("initial the optimizer's state")
    for one in self._opened:
      unused = [
        name for name in one.source.variables.values() if name not in one.used
      ]
      lines += [f'unused  {n} of {one.source.path}' for n in unused]
    return '\n'.join(lines) + '\n'


def _by_name(state: Any) -> dict[str, jax.ShapeDtypeStruct]:
  paths = checkpoints.state_paths(state)
  return {path.replace('.', '/'): leaf for path, leaf in paths.items()}


def _is_variable(target: str) -> bool:
  return target.startswith(_VARIABLES)


def _rule_name(target: str) -> str:
  """Returns the name that rules match, by that in the state."""
  if _is_variable(target):
    return target.removeprefix(_VARIABLES)
  return _OPT_RULES + target.removeprefix(_OPT_STATE)


def _target(name: str) -> str:
  """Inverts `_rule_name`."""
  if name.startswith(_OPT_RULES):
    return _OPT_STATE + name.removeprefix(_OPT_RULES)
  return _VARIABLES + name


def _initial(task_program, batch, names) -> dict[str, jax.Array]:
  """Returns new values of some arrays, by name."""
  paths = checkpoints.state_paths(task_program.abstract_state)
  by_name = {path.replace('.', '/'): path for path in paths}
  made = task_program.init_leaves(batch, [by_name[name] for name in names])
  return {name: made[by_name[name]] for name in names}
