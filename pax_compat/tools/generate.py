"""Continues a text with the language model of a run.

    python -m pax_compat.tools.generate --job_log_dir=runs/first --prompt='The '

Each continuation is printed after its prompt. `pax_compat.inference` does the
same from Python.
"""

from absl import flags

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


def main(argv: list[str]) -> int:
  """Prints the continuations; returns the exit status."""
  command_line.no_arguments(argv)
  command_line.require(job_flags.JOB_LOG_DIR, _PROMPT)
  # Late: JAX takes a second to import, which an invalid flag should not cost.
  from pax_compat import inference

  model = inference.load(
    job_flags.JOB_LOG_DIR.value, _STEP.value, settings=job_flags.SET.value
  )
  texts = model.generate(
    _PROMPT.value,
    max_decode_steps=_MAX_DECODE_STEPS.value,
    dataset=_DATASET.value,
  )
  for prompt, text in zip(_PROMPT.value, texts, strict=True):
    print(f'{prompt}{text}', flush=True)
  return 0


if __name__ == '__main__':
  command_line.run(main)
