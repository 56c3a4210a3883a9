#!/bin/sh
# Makes this machine ready for `lightloom testbed up`: packages, virtual environment, image.
#
# For Debian 12 and Ubuntu 24.04, as root. May be run again at any time: what is there already
# is left as it is. Progress goes to stderr.
#   LIGHTLOOM_PYTHON   Python to use (3.11 or newer), otherwise the first one found
#   LIGHTLOOM_VENV     where the virtual environment goes, otherwise .venv beside setup.cfg
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
venv=${LIGHTLOOM_VENV:-$root/.venv}
policy=/usr/sbin/policy-rc.d

say() { printf 'setup: %s\n' "$*" >&2; }

fail() {
    printf 'setup: error: %s\n' "$1" >&2
    printf 'setup: hint: %s\n' "$2" >&2
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

can_make_venv() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

find_python() {
    for candidate in ${LIGHTLOOM_PYTHON:-python3 python3.11 python3.12 python3.13}; do
        if have "$candidate" && recent "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
}

# One package name a line for everything that is missing.
missing_packages() {
    have ovs-vswitchd || echo openvswitch-switch
    if ! have dockerd && [ ! -S /var/run/docker.sock ]; then echo docker.io; fi
    have mmdebstrap || echo mmdebstrap
    { have ip && have tc; } || echo iproute2
    have ethtool || echo ethtool
    have ping || echo iputils-ping
    have cc || printf 'gcc\nlibc6-dev\n' # tests build a stand-in for libnvidia-ml
    { have prometheus && have promtool; } || echo prometheus
    have chromium || echo chromium
    python=$(find_python)
    if [ -z "$python" ]; then
        # The distribution's own Python is recent enough on both supported systems.
        [ -n "${LIGHTLOOM_PYTHON:-}" ] || printf 'python3\npython3-venv\n'
    elif [ ! -x "$venv/bin/python" ] && ! can_make_venv "$python"; then
        "$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'
    fi
}

# The rack starts its own daemons; those of the packages stay down. A policy that the machine
# has already is respected.
install_packages() {
    if [ ! -e "$policy" ]; then
        trap 'rm -f "$policy"' EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 0755 "$policy"
        ours=yes
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2
    # shellcheck disable=SC2086  # one word a package
    apt-get install -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 $1 >&2
    if [ "${ours:-no}" = yes ]; then
        rm -f "$policy"
        trap - EXIT INT TERM
    fi
}

set_up_packages() {
    packages=$(missing_packages | tr '\n' ' ')
    if [ -z "$packages" ]; then
        say 'packages: all there'
        return
    fi
    have apt-get || fail "this machine lacks $packages and has no apt-get" \
        'install them by hand, then run this again'
    say "packages: installing $packages"
    install_packages "$packages"
}

set_up_venv() {
    stamp=$venv/.lightloom-lock
    wanted=$(cat "$root/requirements.lock" "$root/setup.cfg" | sha256sum | cut -d' ' -f1)
    if [ -x "$venv/bin/lightloom" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        say "virtual environment: $venv is up to date"
        return
    fi
    if [ ! -x "$venv/bin/python" ] || ! recent "$venv/bin/python"; then
        python=$(find_python)
        [ -n "$python" ] || fail 'no Python 3.11 or newer found' \
            'install python3.11 or newer, or name one: LIGHTLOOM_PYTHON=/path/to/python3'
        say "virtual environment: making $venv with $("$python" --version)"
        "$python" -m venv --clear "$venv"
    fi
    say 'virtual environment: installing what requirements.lock names'
    rm -f "$stamp"
    "$venv/bin/python" -m pip install -q --disable-pip-version-check \
        --require-hashes -r "$root/requirements.lock" >&2
    PYTHONWARNINGS=ignore "$venv/bin/python" -m pip install -q --disable-pip-version-check \
        --no-deps --no-build-isolation -e "$root" >&2
    printf '%s\n' "$wanted" >"$stamp"
}

set_up_image() {
    say 'container image: building it if it is missing (minutes the first time)'
    (cd "$root" && "$venv/bin/python" -m testbed.setup.image >&2)
}

[ "$(id -u)" -eq 0 ] || fail 'set-up needs root' 'run it with sudo'
set_up_packages
set_up_venv
set_up_image
say 'done'
