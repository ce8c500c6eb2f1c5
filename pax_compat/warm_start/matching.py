"""Applies loading rules to names of arrays."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from pax_compat import errors
from pax_compat.tasks import loading_rules
from pax_compat.warm_start import sources

_MAX_LISTED = 8


@dataclasses.dataclass(frozen=True)
class Match:
  """What the rules of one checkpoint load.

  Attributes:
    found: names of the source's arrays by the names of their targets.
    unmatched: expressions that matched no target, each with near names.
  """

  found: Mapping[str, str]
  unmatched: Sequence[str]


def match(
  rules: loading_rules.CheckpointLoadingRules,
  names: Sequence[str],
  source: sources.Source,
  *,
  done: Mapping[str, str],
) -> Match:
  """Returns which variables a checkpoint's rules load.

  Args:
    rules: of the checkpoint.
    names: of the variables of the task, and of arrays of the optimizer's state
      if rules apply to them.
    source: the checkpoint.
    done: variables that an earlier checkpoint has loaded.

  Raises:
    UserError: a source does not exist, or no rule matches a variable (if
      `safe_load`, one that does not).
  """
  ignored = [re.compile(one) for one in rules.ignore_rules or ()]
  patterns = [(re.compile(one), text) for one, text in rules.load_rules]
  used, found = set(), {}
  for name in names:
    if any(one.match(name) for one in ignored):
      continue
    for pattern, text in patterns:
      matched = pattern.match(name)
      if not matched:
        continue
      used.add(pattern.pattern)
      if name not in done:
        found[name] = _format(pattern, text, matched)
      break
  unmatched = [(p.pattern, '') for p, _ in patterns if p.pattern not in used]
  unmatched += [
    (one.pattern, ' (of ignore_rules)')
    for one in ignored
    if not any(one.match(name) for name in names)
  ]
  unmatched = [
    f'{pattern!r}{where}{errors.did_you_mean(pattern, names)}'
    for pattern, where in unmatched
  ]
  _check_used(rules, used, unmatched, source)
  return Match(_existing(found, source, rules), unmatched)


def _format(pattern: re.Pattern, text: str, matched: re.Match) -> str:
  """Returns the name of a source; a dot may stand for a slash."""
  try:
    return text.format(*matched.groups()).replace('.', '/')
  except (IndexError, KeyError, ValueError) as e:
    raise errors.UserError(
      f'{loading_rules.FIELD}: the source {text!r} does not fit the groups of'
      f' {pattern.pattern!r}: {errors.one_line(e)}'
    ) from e


def _check_used(rules, used, unmatched, source):
  if (
    rules.load_rules and not used and (rules.safe_load or not _optional(rules))
  ):
    raise errors.UserError(
      f'{loading_rules.FIELD}: no rule for {source.path} matches a variable:'
      f' {"; ".join(unmatched[:_MAX_LISTED])}'
    )
  if rules.safe_load and any('(of ignore' not in one for one in unmatched):
    raise errors.UserError(
      f'{loading_rules.FIELD}: with safe_load, each rule for {source.path} must'
      f' match a variable; these do not: {"; ".join(unmatched[:_MAX_LISTED])}'
    )


def _optional(rules) -> bool:
  """Whether the rules load something else than variables."""
  return rules.load_step or rules.load_opt_states


def _existing(found, source, rules) -> dict[str, str]:
  """Returns names of the source's arrays, by the names of their targets."""
  arrays, missing = {}, []
  for name, wanted in found.items():
    if wanted.startswith('ema/') and not rules.load_ema_states:
      raise errors.UserError(
        f'{loading_rules.FIELD}: {name} is loaded from {wanted}, and'
        ' load_ema_states is False'
      )
    array = source.array_of(wanted)
    if wanted.startswith('opt_states/'):
      array = source.opt_state_of(wanted)
    if array is None:
      missing.append((name, wanted))
    else:
      arrays[name] = array
  if missing:
    lines = [
      f'  {wanted} for {name}{errors.did_you_mean(wanted, source.known())}'
      for name, wanted in missing[:_MAX_LISTED]
    ]
    if len(missing) > _MAX_LISTED:
      lines.append(f'  and {len(missing) - _MAX_LISTED} more')
    averages = ''
    if any(w.startswith('ema/') for _, w in missing) and not source.averages:
      averages = '; it has no moving averages'
    raise errors.UserError(
      f'{source.path} lacks these variables{averages}:\n'
      + '\n'.join(lines)
      + '\nexpected other load_rules, or ignore_rules for them'
    )
  return arrays
