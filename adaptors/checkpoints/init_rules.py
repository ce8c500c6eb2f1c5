"""Initial values from TensorFlow checkpoints: `init_from_checkpoint_rules`.

Rules of Lingvo's `train` Params map names of variables to names in checkpoints:

  {'/runs/old/train': ([('my_lm/(.*)', 'lm/%s')], ['.*softmax'])}

A variable is loaded by the first rule whose regular expression matches the
start of its name, such as `my_lm/emb/var_0/var:0`, unless an expression of the
second list does. They apply to a new run only, and to all of its variables, as
in Lingvo's trainer: those of layers and of optimizers, moving averages,
`global_step`.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from adaptors.checkpoints import files, importing, mapping
from adaptors.checkpoints.counts import GLOBAL_STEP, Counts
from adaptors.checkpoints.metadata import CheckpointMetadata
from adaptors.translate.variables import Identity
from pax_compat import base_layer, checkpoints, errors
from pax_compat.layer_core.task_scopes import scope_of

_FIELD = 'train.init_from_checkpoint_rules'
_AVERAGE = 'ExponentialMovingAverage'
_TRACKER = 'learners[0].grad_norm_tracker'
_MAX_LISTED = 10


@dataclasses.dataclass(frozen=True)
class Rules:
  """The rules of one checkpoint.

  Attributes:
    path: of the checkpoint, or of a folder with checkpoints.
    load: pairs of a regular expression of names and a format of the name in the
      checkpoint.
    ignore: regular expressions of names that are not loaded.
  """

  path: str
  load: Sequence[tuple[str, str]]
  ignore: Sequence[str]

  def source(self, name: str) -> str | None:
    """Returns the name in the checkpoint of a variable; None if not loaded.

    Raises:
      UserError: a format does not fit its expression.
    """
    name = f'{name}:0'
    for pattern, text in self.load:
      match = re.match(pattern, name)
      if match and not any(re.match(p, name) for p in self.ignore):
        try:
          return (text % match.groups()).removesuffix(':0')
        except (TypeError, ValueError) as error:
          raise errors.UserError(
            f'{_FIELD}: the format {text!r} does not fit the groups of'
            f' {pattern!r}: {error}'
          ) from error
    return None


def read(tasks: Sequence[Any], model: Any) -> tuple[Rules, ...]:
  """Returns the rules of several `train` Params, merged as in Lingvo.

  Args:
    tasks: `train` Params of the tasks.
    model: of their model, whose `init_from_checkpoint_override` Lingvo ignores.

  Raises:
    UserError: they are not written as Lingvo reads them.
  """
  merged: dict[str, Rules] = {}
  for found in (
    *map(_of_task, tasks),
    dict(model.init_from_checkpoint_rules or {}),
  ):
    for path, rules in found.items():
      if not path:
        logging.warning('%s: rules of an empty path are ignored', _FIELD)
        continue
      load, ignore = _checked(path, rules)
      old = merged.get(path, Rules(path, (), ()))
      merged[path] = Rules(
        path,
        (*old.load, *(one for one in load if one not in old.load)),
        (*old.ignore, *(one for one in ignore if one not in old.ignore)),
      )
  return tuple(merged.values())


def _of_task(train) -> Mapping[str, Any]:
  rules = dict(train.init_from_checkpoint_rules or {})
  instead = train.init_from_checkpoint_override
  if instead is None or not rules:
    return rules
  if len(rules) != 1:
    raise errors.UserError(
      f'train.init_from_checkpoint_override is set, and {_FIELD} has'
      f' {len(rules)} checkpoints; expected one'
    )
  return {instead: next(iter(rules.values()))}


def _checked(path: str, rules: Any) -> tuple[list, list]:
  pair = isinstance(rules, tuple) and len(rules) == 2
  if not pair or not all(isinstance(part, list) for part in rules):
    raise errors.UserError(
      f'{_FIELD}[{path!r}] is {rules!r}; expected a tuple of two lists: pairs'
      ' of an expression and a format, and expressions to ignore'
    )
  load, ignore = rules
  for one in load:
    if len(one) != 2 or not all(isinstance(x, str) for x in one):
      raise errors.UserError(
        f'{_FIELD}[{path!r}] has the rule {one!r}; expected an expression and a'
        ' format'
      )
  for pattern in (*(pattern for pattern, _ in load), *ignore):
    errors.compiled(pattern, f'{_FIELD}[{path!r}]')
  return [tuple(one) for one in load], ignore


class Start:
  """The start of a new run with values of checkpoints.

  Attributes:
    step: the number of steps, if a rule loads `global_step`; else 0.
  """

  def __init__(self, rules: Sequence[Rules], metadata: CheckpointMetadata):
    """Opens the checkpoints.

    Args:
      rules: of each checkpoint.
      metadata: of the task; without optimizers if checkpoints of them are not
        supported.

    Raises:
      UserError: a checkpoint is missing, or `global_step` cannot be loaded.
    """
    self._metadata = metadata
    self._opened = [(one, files.newest(one.path)) for one in rules]
    self._loaded = 0
    self.step = self._read_step()

  def __str__(self) -> str:
    names = ', '.join(checkpoint.prefix for _, checkpoint in self._opened)
    return f'new values, and {self._loaded} variables of {names} ({_FIELD})'

  def state(self, program, batch) -> Any:
    """Returns the initial state with the loaded values.

    Peak memory is the state and one of its arrays.

    Args:
      program: the task's `TaskProgram`.
      batch: a batch of this process, or its shapes.

    Raises:
      UserError: tensors are missing or of another shape, two checkpoints have
        rules for one variable, or the rules of one match none.
    """
    wanted = checkpoints.state_paths(program.abstract_state)
    arrays = self._arrays(program.abstract_state)
    counts = Counts(wanted, self._metadata)
    found = self._sources(arrays, [number.name for number in counts.numbers()])
    leaves = checkpoints.state_paths(program.init_state(batch))
    for path, count in counts.started(_reader(found)).items():
      values = np.broadcast_to(np.asarray(count), wanted[path].shape)
      leaves[path] = importing.sharded(values, wanted[path])
    for array in arrays:
      if any(name in found for name in array.tensors):
        values = self._values(array, found, leaves[array.path])
        leaves[array.path] = importing.sharded(values, wanted[array.path])
    structure = jax.tree.structure(program.abstract_state)
    return jax.tree.unflatten(structure, [leaves[path] for path in wanted])

  def _read_step(self) -> int:
    for rules, checkpoint in self._opened:
      source = rules.source(GLOBAL_STEP)
      if source is None:
        continue
      if source not in checkpoint.shapes:
        raise _missing(checkpoint, [(GLOBAL_STEP, source)])
      step = int(checkpoint.read(source))
      counting = [o for o in self._metadata.optimizers if o.counts_by_itself]
      if step and (counting or not self._metadata.optimizers):
        raise errors.UserError(
          f'{_FIELD} loads {GLOBAL_STEP} {step}, which is not supported with'
          ' this optimizer; expected an expression to ignore it, such as'
          f' {GLOBAL_STEP!r}'
        )
      return step
    return 0

  def _arrays(self, state) -> list[mapping.Leaf]:
    """Returns the arrays of a state that are variables in Lingvo."""
    if self._metadata.optimizers:
      return list(mapping.leaves_of(state, self._metadata))
    for rules, _ in self._opened:
      for name in self._metadata.names.values():
        if rules.source(f'{name}/Slot') is not None:
          raise errors.UserError(
            f"{_FIELD}[{rules.path!r}] loads the optimizer's state of {name},"
            ' which is not supported for this optimizer; expected expressions'
            " that end with '/var:0'"
          )
    return list(_without_slots(checkpoints.state_paths(state), self._metadata))

  def _sources(
    self, arrays: Sequence[mapping.Leaf], numbers: Sequence[str]
  ) -> dict[str, tuple[Any, str]]:
    """Returns checkpoint and tensor by the name of each loaded variable."""
    names = {name for array in arrays for name in array.tensors}
    names |= {*numbers, *self._metadata.names.values()}
    found: dict[str, tuple[Any, str]] = {}
    for rules, checkpoint in self._opened:
      own = {n: rules.source(n) for n in sorted(names)}
      own = {n: source for n, source in own.items() if source is not None}
      both = sorted(set(own) & set(found))
      if both:
        raise errors.UserError(
          f'{_FIELD}: two checkpoints have rules for {", ".join(both[:3])};'
          ' expected one for each variable'
        )
      if not own:
        raise errors.UserError(
          f'{_FIELD}[{rules.path!r}] matches no variable; expected names such'
          f' as {", ".join(sorted(names)[:3])}'
        )
      missing = [(n, s) for n, s in own.items() if s not in checkpoint.shapes]
      if missing:
        raise _missing(checkpoint, missing)
      _report(rules, checkpoint, own, names)
      found |= {n: (checkpoint, source) for n, source in own.items()}
    self._loaded = len(found)
    return found

  def _values(self, array: mapping.Leaf, found, initial) -> np.ndarray:
    """Returns an array made of loaded variables, and initial ones."""
    values = [None] * len(array.tensors)
    if any(name not in found for name in array.tensors):
      values = array.transform.to_lingvo(np.asarray(initial))
    for index, name in enumerate(array.tensors):
      if name in found:
        checkpoint, source = found[name]
        values[index] = checkpoint.read(source)
    shapes = [np.shape(value) for value in values]
    try:
      result = array.transform.to_jax(values)
    except ValueError:
      result = None
    if result is None or result.shape != initial.shape:
      tensors = ', '.join(
        f'{name} {list(shape)}'
        for name, shape in zip(array.tensors, shapes, strict=True)
      )
      raise errors.UserError(
        f'{_FIELD} loads {tensors} for {array.path} {list(initial.shape)};'
        ' expected the same shape; add an expression to ignore it'
      )
    return result


def _reader(found):
  """Returns a function that reads a number, None for one that is not loaded."""

  def read(number):
    if number.name not in found:
      return None
    checkpoint, source = found[number.name]
    return checkpoint.read(source)

  return read


def _without_slots(
  wanted: Mapping[str, Any], metadata: CheckpointMetadata
) -> Iterator[mapping.Leaf]:
  """Yields the arrays of a state that are variables of layers or averages."""
  for variable in metadata.variables:
    kind = (
      base_layer.PARAMS if variable.is_trainable else base_layer.NON_TRAINABLE
    )
    path = variable.jax.replace('/', '.')
    names = tuple(metadata.names[theta] for theta in variable.theta)
    yield mapping.Leaf(f'mdl_vars.{kind}.{path}', names, variable.transform)
    averages = tuple(f'{name}/{_AVERAGE}' for name in names)
    for learner, own in _learners_of(variable, path):
      place = 'ema' if variable.is_trainable else f'variables.{kind}'
      average = f'{learner}.average.{place}.{own}'
      if average in wanted:
        yield mapping.Leaf(average, averages, variable.transform)
  for path in wanted:
    theta = f'{_TRACKER}.{path.rpartition(".")[2]}'
    if path.startswith('opt_state.norms.') and theta in metadata.names:
      yield mapping.Leaf(path, (metadata.names[theta],), Identity())


def _learners_of(variable, path: str) -> Iterator[tuple[str, str]]:
  """Yields possible paths of a variable's learner, and its own path there."""
  yield 'opt_state', path
  task, _, _ = variable.theta[0].partition('.')
  scope = f'{scope_of(task)}.'
  if path.startswith(scope):
    yield f'opt_state.{task}', path.removeprefix(scope)


def _missing(checkpoint, names) -> errors.UserError:
  lines = [
    f'  {source} for {name}{errors.did_you_mean(source, checkpoint.shapes)}'
    for name, source in names[:_MAX_LISTED]
  ]
  more = len(names) - _MAX_LISTED
  lines += [f'  and {more} more'] if more > 0 else []
  return errors.UserError(
    f'{_FIELD}: {checkpoint.prefix} lacks these tensors:\n' + '\n'.join(lines)
  )


def _report(rules, checkpoint, own, names):
  """Logs what is loaded, and what is not."""
  logging.info(
    '%s: %d of %d variables are loaded from %s:',
    _FIELD,
    len(own),
    len(names),
    checkpoint.prefix,
  )
  for name, source in own.items():
    logging.info('  %s from %s', name, source)
  for name in sorted(names - set(own)):
    logging.info('  %s keeps its initial value', name)
  for pattern, text in rules.load:
    if not any(re.match(pattern, f'{name}:0') for name in own):
      logging.warning(
        '%s: the rule (%r, %r) matches no variable', _FIELD, pattern, text
      )
