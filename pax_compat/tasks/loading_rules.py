"""Rules for loading initial values from a checkpoint of another run."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pax_compat import errors
from pax_compat.config import Config

# The rule that loads each variable from the one of its name.
LOAD_ALL = ('(.*)', '{}')
FIELD = 'Train.init_from_checkpoint_rules'


@dataclasses.dataclass(frozen=True, repr=False)
class CheckpointLoadingRules:
  """What a new run loads from one checkpoint.

  Names of variables are those of the task, such as `params/lm/softmax/w`; a dot
  may stand for the slash.

  >>> CheckpointLoadingRules(
  ...   load_rules=[('params/lm/(.*)', 'params/{}')], ignore_rules=['.*/bias/']
  ... ).load_rules
  [('params/lm/(.*)', 'params/{}')]

  Attributes:
    task_p: config of the task that made the checkpoint. Not needed:
      checkpoints describe themselves.
    load_rules: pairs of a regular expression of the beginning of a variable's
      name, and the name of its source, in which `{}` are the groups. The first
      one that matches applies. `ema/params/...` is the moving average of a
      weight.
    safe_load: whether it is an error if an expression of `load_rules` matches
      no variable; otherwise a warning.
    ignore_rules: regular expressions of variables that are not loaded.
    step: the step of the checkpoint; None for the newest.
    load_step: whether the run begins at the step of the checkpoint, instead of
      0.
    load_opt_states: whether all of the optimizer's state is loaded, moving
      averages included; the optimizers must be of the same kind.
    load_ema_states: whether sources may be moving averages.
    partial_load_opt_states: whether the rules apply to the arrays of the
      optimizer's state, too. Their names begin with `opt_states/`.
    input_specs_provider_p: not needed, as `task_p`.

  Raises:
    UserError: a field is invalid.
  """

  task_p: Config | None = None
  load_rules: Sequence[tuple[str, str]] = (LOAD_ALL,)
  safe_load: bool = False
  ignore_rules: Sequence[str] | None = None
  step: int | None = None
  load_step: bool = False
  load_opt_states: bool = False
  load_ema_states: bool = True
  partial_load_opt_states: bool = False
  input_specs_provider_p: Config | None = None

  def __post_init__(self):
    for pair in self.load_rules:
      is_pair = isinstance(pair, Sequence) and len(pair) == 2
      if not is_pair or not all(isinstance(one, str) for one in pair):
        raise errors.UserError(
          f'{FIELD}: load_rules has {pair!r}; expected a pair of a regular'
          ' expression and the name of the source, such as'
          " ('params/(.*)', 'params/{}')"
        )
    if isinstance(self.ignore_rules, str):
      raise errors.UserError(
        f'{FIELD}: ignore_rules is {self.ignore_rules!r}; expected a list'
      )
    patterns = [pattern for pattern, _ in self.load_rules]
    for pattern in (*patterns, *(self.ignore_rules or ())):
      errors.compiled(pattern, FIELD)

  def __repr__(self):
    values = []
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if isinstance(value, Config):
        value = f'<{value.cls.__name__}>'
        values.append(f'{field.name}={value}')
      elif value != field.default:
        values.append(f'{field.name}={value!r}')
    return f'{type(self).__name__}({", ".join(values)})'


def checked(rules: Any) -> dict[str, CheckpointLoadingRules]:
  """Returns rules by the path of their checkpoint.

  Args:
    rules: by path, `CheckpointLoadingRules` or mappings of their fields.

  Raises:
    UserError: they are neither.
  """
  if not isinstance(rules, Mapping):
    raise errors.UserError(
      f'{FIELD} is {rules!r}; expected a dict from the path of a checkpoint to'
      ' CheckpointLoadingRules'
    )
  return {path: _checked(path, one) for path, one in rules.items()}


def _checked(path: Any, rules: Any) -> CheckpointLoadingRules:
  if not isinstance(path, str) or not path:
    raise errors.UserError(
      f'{FIELD} has the key {path!r}; expected the path of a checkpoint'
    )
  if isinstance(rules, CheckpointLoadingRules):
    return rules
  if not isinstance(rules, Mapping):
    raise errors.UserError(
      f'{FIELD}[{path!r}] is {rules!r}; expected CheckpointLoadingRules'
    )
  known = [field.name for field in dataclasses.fields(CheckpointLoadingRules)]
  for name in rules:
    if name not in known:
      raise errors.UserError(
        f'{FIELD}[{path!r}] has no field {name!r}'
        + errors.did_you_mean(str(name), known)
      )
  return CheckpointLoadingRules(**rules)
