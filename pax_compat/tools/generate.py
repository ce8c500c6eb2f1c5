"""Continues a text with the language model of a run.

    python -m pax_compat.tools.generate --job_log_dir=runs/first --prompt='The '

The decoder of the model continues it, by default greedily. `--temperature`,
`--top_k`, `--top_p` and `--num_samples` sample; `--beam_size` searches. With
`--draft_job_log_dir` a smaller model proposes tokens.

Each continuation is printed after its prompt; with `--stream`, as it is
decoded. `pax_compat.inference` does the same from Python.
"""

from typing import Any

from absl import flags

from pax_compat import errors
from pax_compat.cli import command_line, job_flags

flags.adopt_module_key_flags(job_flags)

_PROMPT = flags.DEFINE_multi_string(
  'prompt', [], 'Text to continue. May be repeated.'
)
_STEP = flags.DEFINE_integer(
  'step', None, 'Step of the checkpoint; the newest by default.'
)
_MAX_DECODE_STEPS = flags.DEFINE_integer(
  'max_decode_steps', 64, 'Maximum number of tokens to add.', lower_bound=1
)
_DATASET = flags.DEFINE_string(
  'dataset', None, 'Dataset whose tokenizer is used; that of training if None.'
)
_TEMPERATURE = flags.DEFINE_float(
  'temperature',
  None,
  'Samples at this temperature; 0 takes the most likely token.',
  lower_bound=0.0,
)
_TOP_K = flags.DEFINE_integer(
  'top_k', None, 'Samples from as many tokens; 0 from all.', lower_bound=0
)
_TOP_P = flags.DEFINE_float(
  'top_p',
  None,
  'Samples from the most likely tokens of this total probability.',
  lower_bound=0.0,
  upper_bound=1.0,
)
_NUM_SAMPLES = flags.DEFINE_integer(
  'num_samples', None, 'Number of samples of each prompt.', lower_bound=1
)
_BEAM_SIZE = flags.DEFINE_integer(
  'beam_size',
  None,
  'Prints as many of the most likely continuations, by beam search.',
  lower_bound=1,
)
_SEED = flags.DEFINE_integer(
  'seed', None, "Seed of samples; by default that of the task's decoding."
)
_DRAFT = flags.DEFINE_string(
  'draft_job_log_dir',
  None,
  'Folder of the run of a smaller model of the same vocabulary. It proposes'
  ' tokens, so that the model needs fewer steps for the same texts.',
)
_DRAFT_STEPS = flags.DEFINE_integer(
  'draft_steps',
  None,
  'Tokens that the draft model proposes in a step; 4 by default.',
  lower_bound=1,
)
_STREAM = flags.DEFINE_bool(
  'stream',
  False,
  'Prints each piece of the text as soon as it is decoded, for one --prompt.',
)


def main(argv: list[str]) -> int:
  """Prints the continuations; returns the exit status."""
  command_line.no_arguments(argv)
  command_line.require(job_flags.JOB_LOG_DIR, _PROMPT)
  if _STREAM.value and (len(_PROMPT.value) > 1 or _NUM_SAMPLES.value):
    raise errors.UserError(
      '--stream prints one text; expected one --prompt, and no --num_samples'
    )
  # Late: JAX takes a second to import, which an invalid flag should not cost.
  from pax_compat import inference

  model = inference.load(
    job_flags.JOB_LOG_DIR.value, _STEP.value, settings=job_flags.SET.value
  )
  draft = None
  if _DRAFT.value is not None:
    draft = inference.load(_DRAFT.value)
  stream = _print_piece if _STREAM.value else None
  if stream is not None:
    print(_PROMPT.value[0], end='', flush=True)
  texts = model.generate(
    _PROMPT.value,
    max_decode_steps=_MAX_DECODE_STEPS.value,
    dataset=_DATASET.value,
    temperature=_TEMPERATURE.value,
    top_k=_TOP_K.value,
    top_p=_TOP_P.value,
    num_samples=_NUM_SAMPLES.value,
    beam_size=_BEAM_SIZE.value,
    seed=_SEED.value,
    draft=draft,
    draft_steps=_DRAFT_STEPS.value,
    stream=stream,
  )
  if stream is not None:
    print()
    return 0
  for prompt, found in zip(_PROMPT.value, texts, strict=True):
    for text in [found] if isinstance(found, str) else found:
      print(f'{prompt}{text}', flush=True)
  return 0


def _print_piece(piece: Any):
  """Prints the next piece of a text."""
  print(piece.text, end='', flush=True)


if __name__ == '__main__':
  command_line.run(main)
