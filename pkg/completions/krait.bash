# bash completion for krait: verbs and options come from the program's help.
_krait() {
  local krait=${COMP_WORDS[0]} verb=${COMP_WORDS[1]} word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="$("$krait" --help 2>/dev/null | sed -n 's/^  \([a-z]*\) .*/\1/p') --help --version"
  elif [ "$COMP_CWORD" -eq 2 ] && [ "$verb" = help ]; then
    words=$("$krait" --help 2>/dev/null | sed -n 's/^  \([a-z]*\) .*/\1/p')
  elif [[ $word == -* ]]; then
    words=$("$krait" "$verb" --help 2>/dev/null | sed -n 's/^ *\(-[a-zA-Z], \)\{0,1\}\(--[a-z-]*\).*/\2/p')
  else
    case $before in
      --device) words="auto cpu cuda" ;;
      --tier) words="base turing ampere hopper" ;;
      --precision) words="tf32 fp32" ;;
      --dtype) words="as-stored float32 float16 bfloat16 q8_0 q4_k" ;;
      --quantize) words="q8_0 q4_k" ;;
      --band) words="whole 16k" ;;
      --chat-format) words="chatml llama3 granite nemotron" ;;
      --state-dtype) words="float32 weights" ;;
      --colour) words="wavelet adain lab none" ;;
      bench) words="clip data describe generate primeknet restore seedvr train videomamba $("$krait" info 2>/dev/null | sed -n '/^operators/,/^$/s/^  \([a-z0-9_]*\) .*/\1/p')" ;;
    esac
    [ -n "$words" ] || return 0 # file names
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _krait krait
