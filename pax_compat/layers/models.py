"""The models that come with the framework, and how they are decoded."""

from pax_compat.decoder_hparams import (  # noqa: F401
  DecoderHParams,
  GreedyDecoderHParams,
)
from pax_compat.layers.bert_model import BertModel  # noqa: F401
from pax_compat.layers.classification_model import (  # noqa: F401
  ClassificationMLPModel,
  ClassificationModel,
)
from pax_compat.layers.language_model import LanguageModel  # noqa: F401
from pax_compat.layers.sequence_model import SequenceModel  # noqa: F401
from pax_compat.layers.transformer_models import (  # noqa: F401
  LanguageModelType,
)
