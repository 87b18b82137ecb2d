# shellcheck shell=bash disable=SC2154
# Makes the Python environment. Sourced by `run` only when there is none that fits, so that the
# usual start stays quick. Uses its root, venv, lock, stamp, say and fail.

# shellcheck source=tools/find_python.sh
source "$root/tools/find_python.sh"

setup_child=

# pip and venv run in the background: the shell runs a trap only once a foreground child has ended.
run_logged() {
  "$@" >>"$venv/setup.log" 2>&1 </dev/null &
  setup_child=$!
  local code=0
  wait "$setup_child" || code=$?
  setup_child=
  return "$code"
}

interrupted() {
  if [[ -n $setup_child ]]; then
    kill "$setup_child" 2>/dev/null || true
    wait "$setup_child" 2>/dev/null || true
  fi
  fail "$1" "set-up interrupted; the next use starts it again"
}

set_up_failed() {
  tail -n 15 "$venv/setup.log" >&2 || true
  fail 1 "set-up failed while $1 (above: the end of .venv/setup.log); the next use starts it again"
}

check_platform() {
  local system
  system="$(uname -s) $(uname -m)"
  [[ $system == "Linux x86_64" ]] ||
    fail 2 "needs Linux x86_64, the only platform with TensorFlow Federated 0.87; this is $system"
  command -v flock >/dev/null || fail 2 "needs the command flock (package util-linux)"
}

# The lock is held on a file inside .venv, which is why .venv is emptied and not deleted.
# A child of a killed set-up inherits the lock, so the next one waits until it has ended.
take_setup_lock() {
  if ! { mkdir -p "$venv" && exec 9>>"$venv/.lock"; } 2>/dev/null; then
    fail 1 "cannot write to $venv"
  fi
  flock -n 9 && return
  say "another set-up of this checkout is under way; waiting for it"
  flock 9
}

set_up_environment() {
  local why=$stale
  check_platform
  [[ -r $lock ]] || fail 2 "there is no requirements.lock in $root"
  find_python
  trap 'interrupted 130' INT
  trap 'interrupted 143' TERM
  trap 'interrupted 129' HUP
  take_setup_lock
  if environment_ready; then
    : # by the set-up that was waited for
  elif TFF_AGNOSTIC_PYTHON=$python environment_ready; then
    # The Python asked for is the one that is there, under another name.
    write_stamp "$(sha256sum <"$lock")"
  else
    build_environment "$why"
  fi
  exec 9>&-
  trap - INT TERM HUP
}

build_environment() {
  local why=$1 sum
  say "setting up .venv with CPython $python_version ($why; takes about 2 minutes on a fast network, once)"
  sum=$(sha256sum <"$lock")
  rm -f "$stamp"
  find "$venv" -mindepth 1 -maxdepth 1 ! -name .lock -exec rm -rf {} + ||
    fail 1 "cannot empty $venv"
  # -I and PIP_USER=0: the user's own Python and pip settings must not lead packages elsewhere.
  run_logged "$python" -I -m venv "$venv" || set_up_failed "making a virtual environment"
  run_logged env PIP_USER=0 "$venv/bin/python" -I -m pip install --quiet --no-input \
    --disable-pip-version-check --progress-bar off --no-deps --require-hashes --no-compile \
    --only-binary :all: --requirement "$lock" || set_up_failed "installing the packages"
  # On all cores, where pip takes one. Some packages bring files that no Python can compile.
  "$venv/bin/python" -I -m compileall -q -j 0 "$venv/lib" >/dev/null 2>&1 || true
  link_package || set_up_failed "making the package importable"
  # The sum is from before the installation: a lock that changed meanwhile is noticed.
  write_stamp "$sum"
}

# The environment's Python imports the checkout from any folder. The path is relative to the file's
# own folder, so that no character of the checkout's can be mistaken, and holds when it moves.
link_package() {
  echo ../../../.. >"$venv/lib/python$python_version/site-packages/tff_agnostic.pth"
}

write_stamp() {
  printf '%s\n' "${1%% *}" "$root" "$python" "${TFF_AGNOSTIC_PYTHON:-}" >"$stamp.new"
  mv "$stamp.new" "$stamp"
}
