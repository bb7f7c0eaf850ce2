#compdef krait
# zsh completion for krait: verbs and options come from the program's help.
local program=$words[1] verb=$words[2] before=$words[CURRENT-1]
local -a found
if (( CURRENT == 2 )) || [[ $CURRENT == 3 && $verb == help ]]; then
  found=(${(f)"$($program --help 2>/dev/null | sed -n 's/^  \([a-z]*\)  *\(.*\)/\1:\2/p')"})
  _describe verb found
elif [[ $words[CURRENT] == -* ]]; then
  found=(${(f)"$($program $verb --help 2>/dev/null | sed -n 's/^ *\(-[a-zA-Z], \)\{0,1\}\(--[a-z-]*\).*/\2/p')"})
  compadd -a found
else
  case $before in
    --device) compadd auto cpu cuda ;;
    --tier) compadd base turing ampere hopper ;;
    --precision) compadd tf32 fp32 ;;
    --dtype) compadd as-stored float32 float16 bfloat16 q8_0 q4_k ;;
    --quantize) compadd q8_0 q4_k ;;
    --band) compadd whole 16k ;;
    --chat-format) compadd chatml llama3 granite nemotron ;;
    --state-dtype) compadd float32 weights ;;
    --colour) compadd wavelet adain lab none ;;
    bench) compadd clip data describe generate primeknet restore seedvr train videomamba ${(f)"$($program info 2>/dev/null | sed -n '/^operators/,/^$/s/^  \([a-z0-9_]*\) .*/\1/p')"} ;;
    *) _files ;;
  esac
fi
