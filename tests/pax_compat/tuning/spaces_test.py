"""Tests of search spaces and of the values of --tune."""

import pytest

from pax_compat import errors
from pax_compat.tuning import spaces


def test_kinds_of_values():
  space = spaces.parsed(
    [
      'task.a=log:1e-4..1e-2',
      'task.b=1..8',
      'task.c=0.1..0.5',
      'attr:D=[1,2],[3,4]',
      'task.e=relu, gelu',
    ]
  )
  a, b, c, d, e = space.parameters
  assert a == spaces.Range('task.a', 1e-4, 1e-2, '--set=task.a=', log=True)
  assert b == spaces.Range('task.b', 1, 8, '--set=task.b=', whole=True)
  assert c == spaces.Range('task.c', 0.1, 0.5, '--set=task.c=')
  assert d.labels == ['[1,2]', '[3,4]']
  assert d.flags('[3,4]') == ['--attr=D=[3,4]']
  assert e.flags('gelu') == ['--set=task.e=gelu']
  assert space.size is None
  assert spaces.parsed(['task.b=1..8', 'task.e=relu,gelu']).size == 16
  assert spaces.parsed(
    [f'{n}={text}' for n, text in {'task.a': str(a), 'task.b': str(b)}.items()]
  ).parameters == (a, b)


def test_combinations():
  space = spaces.parsed(['task.b=1..3', 'attr:E=x,y'])
  found = [tuple(values.values()) for values in space.combinations()]
  assert found == [(1, 'x'), (1, 'y'), (2, 'x'), (2, 'y'), (3, 'x'), (3, 'y')]


@pytest.mark.parametrize(
  'spec, message',
  [
    ('task.a', 'expected path=values'),
    ('task.a=1,,2', 'has an empty value; expected values such as'),
    ('task.a=1,1', 'has the value 1 twice'),
    ('task.a=2..1', 'from a smaller to a larger'),
    ('task.a=1..1', 'from a smaller to a larger'),
    ('task.a=1..x', '1..x is not a range of numbers'),
    ('task.a=1..2..3', 'is not a range of numbers'),
    ('task.a=0.0..inf', 'from a smaller to a larger'),
    ('task.a=log:0..1', 'begins above 0, not at 0'),
    ('task.a=log:1,2', 'log: needs a range'),
  ],
)
def test_mistakes(spec, message):
  with pytest.raises(errors.UserError, match=message) as e:
    spaces.parsed([spec])
  assert spec.partition('=')[0] in str(e.value)


def test_a_setting_given_twice():
  with pytest.raises(errors.UserError, match='task.a is given twice'):
    spaces.parsed(['task.a=1,2', 'task.a=3,4'])
