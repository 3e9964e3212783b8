#!/usr/bin/env bash
# Environments for `laneway bench queue`: saq and taskiq-redis want releases of redis-py that exclude each other and ours.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

environment() { # name, packages
  local folder=.venv-bench/$1
  shift
  [[ -f $folder/.packages && $(<"$folder/.packages") == "$*" ]] && return
  printf 'setup: making %s\n' "$folder" >&2
  .venv/bin/python -m venv --clear "$folder"
  "$folder/bin/python" -m pip --disable-pip-version-check -qq install "$@"
  printf '%s\n' "$*" >"$folder/.packages"
}

environment saq "saq[redis]==0.26.4" hiredis uvloop typing-extensions # which it imports and does not name
environment taskiq taskiq==0.13.0 taskiq-redis==1.2.4 hiredis uvloop
