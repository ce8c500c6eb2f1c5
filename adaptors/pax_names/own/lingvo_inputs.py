"""Lingvo inputs with Pax's default: generators are built as for a TPU.

So a generator whose batches differ on a TPU, such as in static shapes, has the
same ones as in Pax.
"""

from adaptors import lingvo_input


class LingvoInputAdaptor(lingvo_input.LingvoInputAdaptor):
  """`lingvo_input.LingvoInputAdaptor`, as for a TPU."""

  xla_device: str = 'tpu'


# The first base of each class below is the one whose defaults count.


class LingvoInputAdaptorNewBatchSize(
  LingvoInputAdaptor, lingvo_input.LingvoInputAdaptorNewBatchSize
):
  """`lingvo_input.LingvoInputAdaptorNewBatchSize`, as for a TPU."""


class LingvoEvalAdaptor(LingvoInputAdaptor, lingvo_input.LingvoEvalAdaptor):
  """`lingvo_input.LingvoEvalAdaptor`, as for a TPU."""


class LingvoLazyEvalAdaptor(
  LingvoInputAdaptor, lingvo_input.LingvoLazyEvalAdaptor
):
  """`lingvo_input.LingvoLazyEvalAdaptor`, as for a TPU."""
