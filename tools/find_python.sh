# shellcheck shell=bash disable=SC2034
# Finds a CPython that TensorFlow Federated runs on. Sourced; the caller has `fail`.
# Sets: python (the real executable, past any launcher) and python_version.

python=
python_version=

# Runs on any Python, so that what was found can be told. The real path is asked for, because
# launchers (pyenv's) and virtual environments can vanish under an environment made from them.
python_probe='
import os, platform, sys
try:
    import ensurepip, venv
    has_venv = "venv"
except ImportError:
    has_venv = "bare"
base = getattr(sys, "_base_executable", None) or sys.executable
sys.stdout.write("%s %d.%d %s %s\n" % (platform.python_implementation(), sys.version_info[0],
    sys.version_info[1], has_venv, os.path.realpath(base)))
'

# Takes the candidate if it fits; else sets rejected to what is wrong with it.
try_python() {
  local answer implementation version has_venv real
  rejected=
  if ! answer=$("$1" -I -c "$python_probe" 2>/dev/null </dev/null); then
    # Python 2 knows no -I, and a launcher without a version behind it fails anyhow.
    answer=$("$1" -c "$python_probe" 2>/dev/null </dev/null) || answer=
  fi
  if ! read -r implementation version has_venv real <<<"$answer" || [[ -z $real ]]; then
    rejected="$1 (does not run)"
    return 1
  fi
  if [[ $implementation != CPython ]]; then
    rejected="$1 ($implementation $version)"
    return 1
  fi
  case $version in
    3.9 | 3.10 | 3.11) ;;
    *)
      rejected="$1 (CPython $version)"
      return 1
      ;;
  esac
  if [[ $has_venv != venv ]]; then
    rejected="$1 (CPython $version without its venv and ensurepip modules)"
    return 1
  fi
  python=$real
  python_version=$version
}

find_python() {
  local need="needs CPython 3.9, 3.10 or 3.11 with its venv module"
  local rejected='' found='' candidate name
  if [[ -n ${TFF_AGNOSTIC_PYTHON:-} ]]; then
    try_python "$TFF_AGNOSTIC_PYTHON" && return
    fail 2 "$need; TFF_AGNOSTIC_PYTHON is $rejected"
  fi
  for name in python3.11 python3.10 python3.9 python3 python; do
    candidate=$(command -v "$name") || continue
    try_python "$candidate" && return
    found+=", $rejected"
  done
  for candidate in "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/3.{11,10,9}.*/bin/python; do
    [[ -x $candidate ]] || continue
    try_python "$candidate" && return
    found+=", $rejected"
  done
  found=${found:-, none}
  fail 2 "$need; found: ${found#, }; install one, or name it in TFF_AGNOSTIC_PYTHON"
}
