"""Completion in a shell: names of flags and, after `--exp=`, of experiments.

    source <(pax-compat --completion=bash)

The script asks `pax-compat --list` for the names that begin as what was typed.
"""

from collections.abc import Iterable

SHELLS = ('bash', 'zsh')
_ZSH = 'autoload -U +X bashcompinit && bashcompinit\n'
# bash splits words at `=`: --exp=lm.c4 is three of them.
_SCRIPT = """\
_pax_compat() {
  local cur="${COMP_WORDS[COMP_CWORD]}" flag="${COMP_WORDS[COMP_CWORD-1]}"
  if [[ $cur == "=" ]]; then
    cur=""
  elif [[ $flag == "=" ]]; then
    flag="${COMP_WORDS[COMP_CWORD-2]}"
  elif [[ $cur == --*=* ]]; then
    flag="${cur%%=*}" cur="${cur#*=}"
  fi
  COMPREPLY=()
  case "$flag" in
    --exp | --model)
      COMPREPLY=($(pax-compat --list "$cur*" 2>/dev/null | cut -d " " -f 1)) ;;
    --job_log_dir | --logdir | --restore_checkpoint_dir)
      COMPREPLY=($(compgen -f -- "$cur")) ;;
    *)
      if [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "@FLAGS@" -- "$cur"))
      fi ;;
  esac
}
complete -o nospace -F _pax_compat pax-compat
"""


def script(shell: str, flags: Iterable[str]) -> str:
  """Returns the script that a shell reads.

  Args:
    shell: one of SHELLS.
    flags: the names of the flags.
  """
  words = ' '.join(f'--{name}' for name in sorted(set(flags)))
  return (_ZSH if shell == 'zsh' else '') + _SCRIPT.replace('@FLAGS@', words)
