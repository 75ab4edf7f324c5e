#!/bin/sh
# Installs the versions in constraints.txt: from docker/wheels if it holds wheels (no network is needed
# then), else from the package index. Runs during an image build, in the repository's root.
#   install.sh torch [requirement]   torch and its dependencies
#   install.sh needs                 the other dependencies of fedgc
#   install.sh postgresql            the driver of that database
#   install.sh packages [names]      additional packages of tasks
#   install.sh fedgc                 fedgc itself
set -eu
part=$1
python=/opt/fedgc/bin/python
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

install() {
    if ls docker/wheels/*.whl >/dev/null 2>&1; then
        set -- --no-index --find-links docker/wheels "$@"
    else
        set -- --only-binary :all: "$@"
    fi
    # Debian's pip, run from its wheel: the image itself has none.
    PYTHONPATH=$(echo /usr/share/python-wheels/pip-*.whl) "$python" -m pip install --no-cache-dir \
        --disable-pip-version-check --root-user-action ignore --constraint constraints.txt "$@"
}

requirements() {
    "$python" -c '
import sys, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
extra = sys.argv[1]
print("\n".join(project["optional-dependencies"][extra] if extra else project["dependencies"]))
' "$1" >/tmp/requirements.txt
    install --requirement /tmp/requirements.txt
    rm /tmp/requirements.txt
}

slim() { # a fifth of these packages is their own tests
    for package in "$@"; do
        find "$site/$package" -type d -name tests -prune -exec rm -r {} +
    done
}

case $part in
torch)
    install "${2:-torch}"
    slim sympy networkx
    ;;
needs)
    requirements ""
    slim numpy
    rm -f /opt/fedgc/bin/uv /opt/fedgc/bin/uvx # by which Flower would install an app's needs as it runs: that is off
    ;;
postgresql)
    requirements postgresql
    ;;
packages)
    # shellcheck disable=SC2086  several names are several words
    [ -z "${2:-}" ] || install $2
    ;;
fedgc)
    install --no-deps .
    rm -rf build ./*.egg-info fedgc
    ;;
*)
    echo "install.sh: saw '$part', needed torch, needs, postgresql, packages or fedgc" >&2
    exit 2
    ;;
esac
