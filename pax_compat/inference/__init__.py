"""Using a trained model from Python.

from pax_compat import inference
model = inference.load('runs/first')
print(model.generate(['The '])[0])
"""

from pax_compat.inference.loading import load
from pax_compat.inference.trained_model import Decoded, TrainedModel

__all__ = ['Decoded', 'TrainedModel', 'load']
