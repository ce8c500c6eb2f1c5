"""The punctuator, as `punctuator.codelab.RNMTModel` has it."""

from adaptors import lingvo_runtime
from tests.adaptors.bridge.families import mt_rnmt

LEARNS_LIKE = 'mt_rnmt'

batch = mt_rnmt.batch


def task_params():
  """Returns Params of a small punctuator, without dropout."""
  module = lingvo_runtime.module('lingvo.tasks.punctuator.model')
  params = mt_rnmt.task_params(
    module.RNMTModel.Params(), encoder_layers=2, decoder_layers=1
  )
  return params.Set(name='punctuator')
