"""Lingvo inputs in code written for Pax."""

import dataclasses

import pytest

from adaptors import lingvo_input as input_module
from adaptors import lingvo_runtime, pax_names
from adaptors.lingvo_input import input_adaptor
from adaptors.pax_names.own import lingvo_inputs
from tests.adaptors.lingvo_input import generators as testing


def _params(path):
  """Returns Params of a generator that is written as one of Pax's code."""
  from praxis import py_utils

  generic = lingvo_runtime.module('lingvo.core.generic_input')
  inputs = lingvo_runtime.module('lingvo.core.base_input_generator')
  lingvo_utils = lingvo_runtime.module('lingvo.core.py_utils')
  tf = lingvo_runtime.module('tensorflow')

  class Lengths(inputs.BaseInputGeneratorFromFiles):
    def _DataSourceFromFilePattern(self, file_pattern, **unused):  # noqa: N802
      def read(record):
        length = tf.strings.length(record)
        on_tpu = tf.constant(lingvo_utils.use_tpu())
        return py_utils.NestedMap(length=length, on_tpu=on_tpu), 1

      return generic.GenericInput(
        processor=read,
        file_pattern=file_pattern,
        bucket_upper_bound=[10],
        bucket_batch_limit=[2],
        repeat_count=1,
        file_random_seed=0,
        require_sequential_order=True,
      )[0]

  return Lengths.Params().Set(file_pattern=path)


def test_a_generator_makes_maps_of_py_utils_as_for_a_tpu(tmp_path):
  pax_names.install()
  from praxis import base_input, pax_fiddle, py_utils

  ours = py_utils.NestedMap
  params = _params(testing.write_lines(tmp_path / 'a', ['a', 'bb', 'c', 'dd']))
  config = pax_fiddle.Config(
    base_input.LingvoInputAdaptorNewBatchSize, input=params, batch_size=1
  )
  adaptor = config.Instantiate()
  assert isinstance(adaptor, base_input.LingvoInputAdaptor)
  batches = testing.drain(adaptor)
  assert [b.length.item() for b in batches] == [1, 2, 1, 2]
  assert all(type(b) is ours and b.on_tpu.all() for b in batches)
  assert py_utils.NestedMap is ours
  adaptor.close()


@pytest.mark.parametrize(
  'name',
  [
    'LingvoInputAdaptor',
    'LingvoInputAdaptorNewBatchSize',
    'LingvoEvalAdaptor',
    'LingvoLazyEvalAdaptor',
  ],
)
def test_the_default_of_each_is_a_tpu(name):
  ours, pax = getattr(input_module, name), getattr(lingvo_inputs, name)
  assert issubclass(pax, (ours, lingvo_inputs.LingvoInputAdaptor))
  by_default = {f.name: f.default for f in dataclasses.fields(ours)}
  of_pax = {f.name: f.default for f in dataclasses.fields(pax)}
  assert of_pax == {**by_default, 'xla_device': 'tpu'}
  assert list(of_pax) == list(by_default)


def test_the_end_of_the_data_is_an_error_of_tensorflow_too():
  adaptor = input_adaptor.LingvoInputAdaptor(
    input=testing.numbers(2), num_batches=1
  )
  adaptor.get_next()
  out_of_range = lingvo_runtime.module('tensorflow').errors.OutOfRangeError
  for ends in (StopIteration, out_of_range):
    with pytest.raises(ends, match='num_batches exceeding 1'):
      adaptor.get_next()
  adaptor.close()
