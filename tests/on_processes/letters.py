"""A program that reads one shape at each step on several hosts."""

import json
import threading

import jax

from adaptors.lingvo_input import input_adaptor
from pax_compat.processes import process_channel
from tests.adaptors.lingvo_input import generators as testing


def read(pattern: str):
  """Prints, as JSON, the batches of an epoch and of endless data."""
  epoch, endless = _adapt(pattern, repeat_count=1), _adapt(pattern)
  found = dict(epoch=_described(testing.drain(epoch)))
  found['after the end'] = len(testing.drain(epoch))
  found['weightless'] = epoch.input_metrics()['input/weightless_batches']
  found['endless'] = _described([endless.get_next() for _ in range(80)])
  if jax.process_index() == 1:  # The other one makes no step any more.
    threading.Timer(0.5, endless.interrupt).start()
    try:
      testing.drain(endless)
    except process_channel.Left:
      found['interrupted'] = True
  epoch.close()
  endless.close()
  print(json.dumps(found))


def _adapt(pattern, **fields):
  return input_adaptor.LingvoInputAdaptor(
    input=testing.letters_params(
      pattern, bucket_batch_limit=[8, 4, 2], **fields
    ),
    is_training=True,
    num_infeed_hosts=jax.process_count(),
    infeed_host_index=jax.process_index(),
  )


def _described(batches):
  return dict(
    shapes=[batch.ids.shape for batch in batches],
    real=[float(batch.eval_sample_weights.sum()) for batch in batches],
    positions=[float(batch.weights.sum()) for batch in batches],
    lines=[t for b in batches for t in testing.texts(b, weighted=True)],
  )
