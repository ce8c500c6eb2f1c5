"""Contexts in which a Lingvo task is built and called as a function."""

import contextlib
from collections.abc import Iterator
from typing import Any

from adaptors import lingvo_runtime
from adaptors.bridge.functional import modules, variables


@contextlib.contextmanager
def recording(task: Any, found: list) -> Iterator[dict]:
  """Makes `_BPropForVariables` record its argument instead of training.

  Args:
    task: the Lingvo task.
    found: takes the arguments.

  Yields:
    The task's attributes.
  """
  own = vars(task)
  own['_BPropForVariables'] = lambda vmap: found.append(vmap)
  try:
    yield dict(own)
  finally:
    del own['_BPropForVariables']


@contextlib.contextmanager
def searched(task: Any, found: dict[str, Any]) -> Iterator[None]:
  """Makes a task's beam search return given hypotheses.

  Its encoder returns nothing then.

  Args:
    task: the Lingvo task, of `mt` or `asr`.
    found: `ids` [B * K, T], `lengths` [B * K] and `scores` [B, K].
  """
  helper = lingvo_runtime.module('lingvo.core.beam_search_helper')
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  output = helper.BeamSearchDecodeOutput(
    # Only its shape is read.
    topk_hyps=found['scores'],
    topk_ids=found['ids'],
    topk_lens=found['lengths'],
    topk_scores=found['scores'],
    topk_decoded=None,
  )
  nothing = py_utils.NestedMap()
  if hasattr(task, 'FrontendAndEncoderFProp'):
    replaced = [
      (task, 'FrontendAndEncoderFProp', lambda *_: nothing),
      (task.decoder, 'BeamSearchDecodeWithTheta', lambda *_: output),
    ]
  else:
    replaced = [
      (task.enc, 'FPropDefaultTheta', lambda *_: nothing),
      (task.dec, 'AddExtraDecodingInfo', lambda encoded, _: encoded),
      (task.dec, 'BeamSearchDecode', lambda _: output),
    ]
  for layer, name, function in replaced:
    vars(layer)[name] = function
  try:
    yield
  finally:
    for layer, name, _ in replaced:
      del vars(layer)[name]


@contextlib.contextmanager
def at_step(task: Any, step: Any) -> Iterator[None]:
  """Replaces the global step, and its variable, by `step`."""
  py_utils = lingvo_runtime.module('lingvo.core.py_utils')
  variable, get = task._global_step_var, py_utils.GetOrCreateGlobalStepVar
  task._global_step_var = step
  py_utils.GetOrCreateGlobalStepVar = lambda: step
  try:
    with py_utils.GlobalStepContext(step):
      yield
  finally:
    task._global_step_var = variable
    py_utils.GetOrCreateGlobalStepVar = get


@contextlib.contextmanager
def creating() -> Iterator[None]:
  """Makes layers create stand-ins for their variables."""
  with variables.creating(), modules.wrapping(), unverified():
    yield


@contextlib.contextmanager
def unverified() -> Iterator[None]:
  """Disables the check of variables at the end of a layer's construction.

  It compares theta with the variables, which reads variables without a value.
  """
  base_layer = lingvo_runtime.module('lingvo.core.base_layer')
  verify = base_layer.BaseLayer._VerifyVarsAndTheta
  base_layer.BaseLayer._VerifyVarsAndTheta = lambda self: None
  try:
    yield
  finally:
    base_layer.BaseLayer._VerifyVarsAndTheta = verify
