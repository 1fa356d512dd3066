# Sourced by the other scripts: makes the Python environment of this checkout and keeps it current.
#
# Needs nothing but Python 3.11 or newer with its `venv` module. The environment is `.venv` in the
# checkout, or the directory named by GALILEO_VENV. It is installed from requirements.lock and
# reused as long as the files that decide about it are unchanged.

set -euo pipefail

# Else each process compiles all of Galileo anew, and tests start many.
unset PYTHONDONTWRITEBYTECODE

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${GALILEO_VENV:-$root/.venv}

say() {
    printf '%s\n' "$*" >&2
}

die() {
    say "error: $*"
    exit 1
}

# Whether "$1" is a Python that can be used; silent, since most candidates do not exist.
python_fits() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11 python; do
        if python_fits "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    die "expected Python 3.11 or newer with its venv module on PATH, found none." \
        "Install it (on Debian and Ubuntu: apt-get install python3 python3-venv) and run this again"
}

# One line that changes when the environment has to be installed anew.
environment_stamp() {
    "$venv/bin/python" - "$root" "$root/requirements.lock" "$root/pyproject.toml" \
        "$root"/plugins/*/pyproject.toml <<'PYTHON'
import hashlib, pathlib, sys

digest = hashlib.sha256(sys.version.encode())
digest.update(sys.argv[1].encode())
for name in map(pathlib.Path, sys.argv[2:]):
    digest.update(name.read_bytes() if name.is_file() else b"")
print(digest.hexdigest())
PYTHON
}

make_environment() {
    local python
    if [[ -x $venv/bin/python ]] && python_fits "$venv/bin/python"; then
        return
    fi
    if [[ -n $(ls -A "$venv" 2>/dev/null) ]]; then
        die "expected a working Python environment in $venv, found something else." \
            "Remove that directory, or name another with GALILEO_VENV, and run this again"
    fi
    python=$(find_python)
    say "Making a Python environment in $venv ($("$python" --version))"
    "$python" -m venv "$venv"
}

pip_install() {
    "$venv/bin/python" -m pip install --disable-pip-version-check --quiet "$@" ||
        die "pip could not install; its message above says why. The network may be down: run this again"
}

locked_names() {
    sed -n 's/^\([A-Za-z0-9._-]*\)==.*/\1/p' "$1" | sort -u
}

# Removes what an earlier lock file installed and this one no longer names: a package that is left
# behind can change what type checks and tests see.
remove_leftovers() {
    local leftovers
    [[ -f $venv/.galileo-lock ]] || return 0
    leftovers=$(comm -23 <(locked_names "$venv/.galileo-lock") \
        <(locked_names "$root/requirements.lock"))
    if [[ -n $leftovers ]]; then
        say "Removing what is no longer needed:" $leftovers
        "$venv/bin/python" -m pip uninstall --disable-pip-version-check --quiet --yes $leftovers
    fi
}

install_packages() {
    local project plugin
    remove_leftovers
    say "Installing the locked dependencies (about 740 MB to download when pip has none of them, 1.6 GB on the disk;" \
        "one minute on a fast network)"
    cp "$root/requirements.lock" "$venv/.galileo-lock"
    pip_install --requirement "$root/requirements.lock"
    say "Installing Galileo itself and its plugins"
    project=(--editable "$root")
    for plugin in "$root"/plugins/*/pyproject.toml; do
        [[ -f $plugin ]] && project+=(--editable "$(dirname "$plugin")")
    done
    pip_install --no-deps --no-build-isolation "${project[@]}"
}

# Afterwards "$venv/bin/python" is an interpreter that has everything.
prepare_environment() {
    local stamp_file=$venv/.galileo-stamp
    make_environment
    if [[ -f $stamp_file && $(<"$stamp_file") == "$(environment_stamp)" ]]; then
        return
    fi
    rm -f "$stamp_file"
    install_packages
    environment_stamp >"$stamp_file"
    say "The environment is ready"
}
