"""Names of types that the core does not have."""

from typing import Any

import jax

from pax_compat.config import Config
from pax_compat.nested_map import NestedMap

HParams = Config
HParamsT = Config
LayerTpl = Config
Predictions = jax.Array | NestedMap | dict[str, Any] | dict[int, Any]
