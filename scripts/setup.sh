#!/bin/sh
# Makes .venv and installs the project into it: `setup.sh core` or `setup.sh dev`.
# The lock file decides the versions; where its files cannot be fetched (a private mirror, no
# wheel of uv for the platform), pip installs the newest allowed versions as it is configured to.
set -eu
cd "$(dirname "$0")/.."
want=${1:-dev}
python=${PYTHON:-python3}
venv=.venv

say() { printf '%s\n' "$*" >&2; }

make_venv() {
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        say "Duetime needs Python 3.11 or later; $python is $("$python" --version 2>&1)."
        say "Choose another one with: make PYTHON=python3.12 $want"
        exit 1
    }
    if ! "$python" -c 'import ensurepip' 2>/dev/null; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            say "Installing python$version-venv, which Debian packages apart from Python …"
            apt-get update -qq
            DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "python$version-venv" >/dev/null
        else
            say "This Python cannot make virtual environments. On Debian or Ubuntu, first run:"
            say "    sudo apt-get install python$version-venv"
            exit 1
        fi
    fi
    say "Making $venv …"
    "$python" -m venv --clear "$venv"
}

install_locked() {
    [ -x "$venv/bin/uv" ] || "$venv/bin/python" -m pip install -q uv || return 1
    # --inexact: uv itself lives in this environment, and `core` after `dev` removes nothing.
    UV_PROJECT_ENVIRONMENT=$venv "$venv/bin/uv" sync -q --frozen --inexact \
        --python "$venv/bin/python" "$@"
}

install_newest() {
    say "The locked versions could not be installed; asking pip for the newest allowed ones."
    "$venv/bin/python" -m pip install -q --upgrade 'pip>=25.1' && "$venv/bin/python" -m pip install -q "$@"
}

# An environment that was moved, or whose Python was removed, does not start: make it again.
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || make_venv

say "Installing Duetime ($want) …"
case $want in
    core)
        install_locked --no-default-groups --extra web --extra metrics ||
            install_newest -e '.[web,metrics]'
        ;;
    dev) install_locked || install_newest -e . --group dev ;;
    *) say "usage: setup.sh core|dev"; exit 2 ;;
esac
