# shellcheck shell=bash disable=SC2154
# Makes the Python environment with uv. Sourced by `run` only when there is none that fits, so that
# the usual start stays quick. Uses its root, what its use_environment sets, say and fail.

setup_child=
# What is done now, and how often that is said where there is no terminal.
setup_step="looking for uv and Python"
setup_line_seconds=30

# In the background: the shell runs a trap only once a foreground child has ended. From /, as uv
# reads the settings of a project that it is called in.
run_logged() {
  (cd / && exec "$@") >>"$venv/setup.log" 2>&1 </dev/null &
  setup_child=$!
  local code=0 started=$SECONDS said=$SECONDS
  while kill -0 "$setup_child" 2>/dev/null; do
    sleep 1 </dev/null >/dev/null 2>&1 9>&- &
    wait -n || true # For either of them: the child's code is asked for below.
    show_setup_step $((SECONDS - started)) $((SECONDS - said)) && said=$SECONDS
  done
  wait "$setup_child" || code=$?
  setup_child=
  [[ ! -t 2 ]] || printf '\r\033[K' >&2
  return "$code"
}

# On a terminal one line that counts the seconds; elsewhere, as in a file, a line now and then.
show_setup_step() {
  local seconds=$1 since_line=$2
  if [[ -t 2 ]]; then
    printf '\r\033[Krun: %s, %d s so far' "$setup_step" "$seconds" >&2
    return 1
  fi
  ((since_line >= setup_line_seconds)) || return 1
  say "$setup_step, $seconds s so far"
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
  fail 1 "set-up failed while $1 (above: the end of $venv_name/setup.log); the next use starts it again"
}

# What a tool said last, for an error of one line.
reason() {
  local said
  said=$(tail -n 1 "$venv/setup.log" 2>/dev/null) || true
  echo "${said#"${said%%[! ]*}"}"
}

# Sets python (the real executable: launchers and virtual environments can vanish under an
# environment made from them) and python_version; or rejected, to what the command is instead.
probe() {
  local answer implementation
  rejected="does not run"
  answer=$("$1" -I -c 'import os, sys
base = getattr(sys, "_base_executable", None) or sys.executable
print(sys.implementation.name, "%d.%d" % sys.version_info[:2], os.path.realpath(base))' \
    2>/dev/null </dev/null) || return 1
  read -r implementation python_version python <<<"$answer"
  rejected="$implementation $python_version"
  [[ $rejected == "cpython $python_version" && " $pythons " == *" $python_version "* ]]
}

# The lock is held on a file inside the environment, which is why that is emptied and not deleted.
# A child of a killed set-up inherits the lock, so the next one waits until it has ended. The file
# is not .lock, on which uv waits for a lock of its own.
take_setup_lock() {
  if ! { mkdir -p "$venv" && exec 9>>"$venv/.setup_lock"; } 2>/dev/null; then
    fail 1 "cannot write to $venv"
  fi
  flock -n 9 && return
  say "another set-up of this checkout is under way; waiting for it"
  flock 9
}

# Sets uv to the one on PATH, or to the pinned one, which any Python 3 with pip installs.
find_uv() {
  local python name has_pip=
  local install="apt install python3-pip (Debian, Ubuntu) or dnf install uv (Fedora)"
  uv=$(command -v uv) && "$uv" --version >/dev/null 2>&1 && return
  uv=$venv/.uv/bin/uv
  for name in ${!python_variable:+"${!python_variable}"} python3{,.{14..8}}; do
    python=$(command -v -- "$name") || continue
    # Debian has pip in one package, and what brings it into virtual environments in another.
    if ! "$python" -I -m pip --version >/dev/null 2>&1; then
      run_logged "$python" -I -m venv --clear "$venv/.uv/venv" || continue
      python=$venv/.uv/venv/bin/python
    fi
    has_pip=yes
    # PIP_USER=0: the user's own setting would lead it elsewhere.
    run_logged env PIP_USER=0 "$python" -I -m pip install --quiet --no-input --upgrade \
      --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
      --target "$venv/.uv" --requirement "$root/tools/uv.txt" && return
  done
  [[ -n $has_pip ]] || fail 2 "needs uv, or a Python 3 with pip, which gets it: $install"
  fail 1 "pip cannot get uv ($(reason)); the first use needs a network, or uv: $install"
}

# Sets python to one that is there, or to what uv is to fetch.
find_python() {
  local version
  [[ -z ${!python_variable:-} ]] || return 0 # It was probed at the beginning.
  for version in $pythons; do
    # uv does not look where pyenv keeps its versions.
    python=$(
      for bin in "${PYENV_ROOT:-${HOME:-}/.pyenv}/versions/$version".*/bin; do PATH+=:$bin; done
      cd / && "$uv" python find --system --no-python-downloads "cpython@$version" 2>/dev/null
    ) && probe "$python" && return
  done
  python_version=${pythons%% *} python=cpython@$python_version
}

set_up_environment() {
  local why=$stale system uv python python_version rejected
  system="$(uname -s) $(uname -m)"
  [[ $system == "Linux x86_64" ]] ||
    fail 2 "needs Linux x86_64, as $needs does; this is $system"
  command -v flock >/dev/null || fail 2 "needs the command flock (package util-linux)"
  [[ -r $lock ]] || fail 2 "there is no $lock_name in $root"
  if [[ -n ${!python_variable:-} ]]; then
    probe "${!python_variable}" ||
      fail 2 "needs one of CPython ${pythons// /, }, as $needs does; $python_variable is ${!python_variable} ($rejected)"
  fi
  trap 'interrupted 130' INT
  trap 'interrupted 143' TERM
  trap 'interrupted 129' HUP
  take_setup_lock
  # The set-up that was waited for may have made it.
  environment_ready || build_environment "$why"
  exec 9>&-
  trap - INT TERM HUP
}

build_environment() {
  local why=$1 sum
  : >"$venv/setup.log"
  # Without a home uv would keep its files in the user's folder.
  if [[ ! -w ${HOME:-} ]]; then
    export UV_CACHE_DIR=${UV_CACHE_DIR-$venv/.uv/cache}
    export UV_PYTHON_INSTALL_DIR=${UV_PYTHON_INSTALL_DIR-$venv/.uv/python}
  fi
  # What pip trusts, too: the system's certificates, of which there may be more than uv brings.
  if [[ -e /etc/ssl/certs/ca-certificates.crt || -e /etc/pki/tls/certs/ca-bundle.crt ]]; then
    export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS-true} UV_NATIVE_TLS=${UV_NATIVE_TLS-true}
  fi
  unset UV_PYTHON UV_SYSTEM_PYTHON UV_CONSTRAINT UV_OVERRIDE
  find_uv
  find_python
  say "setting up $venv_name with CPython $python_version ($why; takes about 2 minutes on a fast network, once)"
  [[ $python == /* ]] || say "there is none yet: uv fetches CPython $python_version (about 30 MB)"
  sum=$(sha256sum <"$lock")
  rm -f "$stamp"
  find "$venv" -mindepth 1 -maxdepth 1 ! -name .setup_lock ! -name .uv ! -name setup.log \
    -exec rm -rf {} + || fail 1 "cannot empty $venv"
  setup_step="making the environment"
  if ! run_logged "$uv" venv --quiet --no-project --allow-existing --python "$python" "$venv"; then
    [[ $python == /* ]] && set_up_failed "making a virtual environment"
    fail 1 "uv cannot fetch CPython $python_version ($(reason)); install one: apt install python$python_version (Debian 12, Ubuntu 22.04) or dnf install python$python_version (Fedora), or name one in $python_variable"
  fi
  probe "$venv/bin/python" || set_up_failed "making a virtual environment"
  setup_step="downloading and installing packages"
  run_logged "$uv" pip install --quiet --python "$venv/bin/python" --no-deps --require-hashes \
    --only-binary :all: --compile-bytecode --requirement "$lock" ||
    set_up_failed "installing the packages"
  # For what users add; some systems' Pythons come without it.
  run_logged "$venv/bin/python" -I -m ensurepip || true
  rm -rf "$venv/.uv/cache" "$venv/.uv/venv"
  # The environment's Python imports the checkout from any folder. The path is relative to the
  # file's own folder: no character of it can be mistaken.
  echo ../../../.. >"$venv/lib/python$python_version/site-packages/tff_agnostic.pth"
  # The sum is from before the installation: a lock that changed meanwhile is noticed.
  printf '%s\n' "${sum%% *}" "$root" "$python" "${!python_variable:-}" >"$stamp.new"
  mv "$stamp.new" "$stamp"
}
