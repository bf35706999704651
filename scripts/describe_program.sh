#!/usr/bin/env bash
# Writes what the program says about its commands, for cmake --install.
#   scripts/describe_program.sh PROGRAM FOLDER
# Files: furlong.1.gz, a manual page of all help texts; furlong and _furlong, completion for bash and zsh.
set -euo pipefail

program=$1 folder=$2
mkdir -p "$folder"

# Escapes text for roff, in which a backslash, and a dot or quote at the start of a line, are commands.
roff() { sed -e 's/\\/\\e/g' -e 's/^\([.'"'"']\)/\\\&\1/' -e 's/-/\\-/g'; }

# describe COMMAND...: the help of a command, then those of its subcommands.
describe() {
  local text name
  text=$("$program" "$@" --help)
  if (( $# )); then printf '.SS "furlong %s"\n' "$*"; else printf '.SH DESCRIPTION\n'; fi
  printf '.nf\n'
  roff <<<"$text"
  printf '.fi\n'
  (( $# )) || printf '.SH COMMANDS\n'
  while read -r name; do describe "$@" "$name" </dev/null; done \
    < <(sed -n '/^Subcommands:/,/^$/{s/^  \([a-z][a-z-]*\) .*/\1/p}' <<<"$text")
}

{
  printf '.TH FURLONG 1 "" "%s" "User Commands"\n' "$("$program" --version | roff)"
  printf '.SH NAME\nfurlong \\- trains transformers on long sequences\n'
  describe
} | gzip -9n >"$folder/furlong.1.gz"
"$program" completion bash >"$folder/furlong"
{ echo '#compdef furlong'; "$program" completion zsh; echo '_bash_complete -F _furlong'; } >"$folder/_furlong"
