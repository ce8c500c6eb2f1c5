"""Leaves out summaries that Python code draws, such as Matplotlib's figures.

A compiled model cannot call Python. TensorFlow keeps such calls even if nothing
uses their result, since Python code may have effects.
"""

import functools
from collections.abc import Callable
from typing import Any

from absl import logging

from adaptors import lingvo_runtime

_PY_FUNC = 'tensorflow.python.ops.script_ops.py_func'
# Draws the figures of Lingvo's `plot.MatplotlibFigureSummary`.
_DRAWS = '_RenderMatplotlibFigures'
_PLOTS = 'lingvo.core.plot'


def replacements() -> dict[str, Callable]:
  """Returns the replacements of functions; see `function_replacing`."""
  tf = lingvo_runtime.module('tensorflow')
  ops = lingvo_runtime.module('tensorflow.python.framework.ops')

  def py_func(original, func, inp, Tout, *args, **kwargs):  # noqa: N803
    if not _draws_figures(func):
      return original(func, inp, Tout, *args, **kwargs)
    log_left_out(ops.get_name_scope())
    return tf.zeros([1, 1, 1, 3], Tout)

  return {_PY_FUNC: py_func}


@functools.cache
def log_left_out(scope: str):
  """Logs once that a summary is left out.

  Args:
    scope: its name scope, or the name of its op.
  """
  logging.info(
    'the summary that Python draws in %s is left out: a compiled model cannot'
    ' call Python code',
    scope or 'the task',
  )


def _draws_figures(function: Any) -> bool:
  function = getattr(function, 'func', function)
  name = getattr(function, '__name__', '')
  return name == _DRAWS and getattr(function, '__module__', '') == _PLOTS
