"""Records the numbers of `forecast_cases`.

    python -m tests.pax.record_forecasts PAXML PRAXIS [PACKAGES]

The arguments are those of `tests.pax.record`. It writes forecasts.npz, and a
checkpoint of Pax in it.
"""

import importlib
import pathlib
import sys
import tempfile

import numpy as np

from tests import source_tree
from tests.pax import forecast_cases, record

RECORDED = source_tree.ROOT / 'testdata/pax/forecasts.npz'
CHECKPOINT = 'checkpoint'


def main():
  record.mount(sys.argv[1:])
  checkpoints = importlib.import_module('paxml.checkpoints')
  found = {f'forecasts/{k}': x for k, x in forecast_cases.forecasts().items()}
  for mode in forecast_cases.MODES:
    numbers, state = forecast_cases.steps(mode)
    numbers |= {
      f'gradients/{path}': x
      for path, x in forecast_cases.gradients(mode).items()
    }
    found |= {f'{mode}/{path}': x for path, x in numbers.items()}
    if mode == 'frozen':
      with tempfile.TemporaryDirectory() as folder:
        checkpoints.save_checkpoint(state, folder).wait_until_finished()
        (file,) = pathlib.Path(folder).rglob('state/checkpoint')
        found[CHECKPOINT] = np.frombuffer(file.read_bytes(), np.uint8)
  np.savez_compressed(RECORDED, **found)
  print(f'wrote {RECORDED}, {RECORDED.stat().st_size} bytes')


if __name__ == '__main__':
  main()
