"""Copies of an object whose class is replaced by a subclass.

>>> class Words:
...   size = 2
>>> class Large(Words):
...   size = 200
>>> words = copied_as(Large, Words())
>>> words.size, type(words).__name__
(200, 'Words')
"""

import copy
from typing import TypeVar

_T = TypeVar('_T')


def copied_as(cls: type, instance: _T) -> _T:
  """Returns a copy of an object, as an instance of a subclass.

  Args:
    cls: a new subclass of the object's class. It gets the name and the
      docstring of that class, which error messages and log lines show.
    instance: the object. It is not changed.
  """
  for name in ('__name__', '__qualname__', '__module__', '__doc__'):
    setattr(cls, name, getattr(type(instance), name))
  made = copy.copy(instance)
  made.__class__ = cls
  return made
