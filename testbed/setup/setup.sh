#!/bin/sh
# Prepares this machine for `lightloom testbed up`: packages, virtual environment, images.
#
# For Debian 12 and Ubuntu 24.04, as root. It is idempotent: existing parts do not change.
# Progress goes to stderr.
#   LIGHTLOOM_PYTHON   Python to use (3.11 or newer), otherwise the first one found
#   LIGHTLOOM_VENV     path of the virtual environment, otherwise .venv next to setup.cfg
#   LIGHTLOOM_PAUSES   seconds between attempts of network downloads (default 5 20 60)
#   LIGHTLOOM_OS_RELEASE  file that names the distribution, otherwise /etc/os-release
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
venv=${LIGHTLOOM_VENV:-$root/.venv}
os_release=${LIGHTLOOM_OS_RELEASE:-/etc/os-release}
policy=/usr/sbin/policy-rc.d
policy_mark='# made by lightloom, for as long as it installs packages'

say() { printf 'setup: %s\n' "$*" >&2; }

fail() {
    printf 'setup: error: %s\n' "$1" >&2
    printf 'setup: hint: %s\n' "$2" >&2
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# attempt WHAT COMMAND...: retries a command that uses the network; status of the last attempt.
attempt() {
    what=$1
    shift
    for pause in ${LIGHTLOOM_PAUSES-5 20 60}; do
        "$@" && return
        say "$what: failed, retrying in $pause s"
        sleep "$pause"
    done
    "$@"
}

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

# Ubuntu has a browser only as a snap, which needs a daemon that not every machine runs.
snaps_only() { grep -qx 'ID="\{0,1\}ubuntu"\{0,1\}' "$os_release"; }

# Prints the names of the missing packages, one per line.
missing_packages() {
    have ovs-vswitchd || echo openvswitch-switch
    if ! have dockerd && [ ! -S /var/run/docker.sock ]; then echo docker.io; fi
    have mmdebstrap || echo mmdebstrap
    [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || echo debian-archive-keyring
    have systemd-nspawn || echo systemd-container # tests boot a fresh Debian with the wheel
    { have ip && have tc; } || echo iproute2
    have ethtool || echo ethtool
    have ping || echo iputils-ping
    have cc || printf 'gcc\nlibc6-dev\n' # tests build a stand-in for libnvidia-ml
    { have prometheus && have promtool; } || echo prometheus
    have docker-registry || echo docker-registry # tests pull images from it
    have fio || echo fio # tests measure a disk with it
    have curl || echo curl # tests run Slurm's hook with it
    have chromium || snaps_only || echo chromium
    python=$(find_python)
    if [ -z "$python" ]; then
        # The distribution's own Python is recent enough on both supported systems.
        [ -n "${LIGHTLOOM_PYTHON:-}" ] || printf 'python3\npython3-venv\n'
    elif [ ! -x "$venv/bin/python" ] && ! can_make_venv "$python"; then
        "$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'
    fi
}

# Waits for apt's locks: a new machine may still be upgrading itself.
apt() {
    apt-get -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0 "$@" >&2
}

# The rack starts its own daemons; those of the packages do not start. An existing policy of the
# machine is respected, unless a killed run of this script left it.
install_packages() {
    if [ ! -e "$policy" ] || grep -qxF "$policy_mark" "$policy"; then
        trap 'rm -f "$policy"' EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM
        printf '#!/bin/sh\n%s\nexit 101\n' "$policy_mark" >"$policy"
        chmod 0755 "$policy"
        ours=yes
    fi
    export DEBIAN_FRONTEND=noninteractive
    # By default apt silently treats an index that it could not fetch as unchanged.
    attempt 'package lists' apt -o APT::Update::Error-Mode=any update ||
        say 'package lists: not all could be fetched, continuing with the existing ones'
    # shellcheck disable=SC2086  # one word per package
    attempt packages apt install -y --no-install-recommends $1 ||
        fail "the packages could not be installed: $1" \
            'see the output of apt-get above, check that a mirror is reachable, then run this again'
    if [ "${ours:-no}" = yes ]; then
        rm -f "$policy"
        trap - EXIT INT TERM
    fi
}

set_up_packages() {
    packages=$(missing_packages | tr '\n' ' ')
    if [ -z "$packages" ]; then
        say 'packages: all installed'
        return
    fi
    have apt-get || fail "this machine lacks $packages and has no apt-get" \
        'install them by hand, then run this again'
    say "packages: installing $packages"
    install_packages "$packages"
}

# A virtual environment from an interrupted run has a Python, but no pip.
usable() { [ -x "$1/bin/python" ] && recent "$1/bin/python" && "$1/bin/python" -m pip -V >/dev/null 2>&1; }

pip() { PYTHONWARNINGS=ignore "$venv/bin/python" -m pip -q --disable-pip-version-check "$@" >&2; }

set_up_venv() {
    stamp=$venv/.lightloom-lock
    wanted=$(cat "$root/requirements.lock" "$root/setup.cfg" | sha256sum | cut -d' ' -f1)
    if [ -x "$venv/bin/lightloom" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        say "virtual environment: $venv is up to date"
        return
    fi
    if ! usable "$venv"; then
        python=$(find_python)
        [ -n "$python" ] || fail 'no Python 3.11 or newer found' \
            'install python3.11 or newer, or set LIGHTLOOM_PYTHON=/path/to/python3'
        say "virtual environment: creating $venv with $("$python" --version)"
        "$python" -m venv --clear "$venv"
    fi
    say 'virtual environment: installing the packages of requirements.lock'
    rm -f "$stamp"
    attempt 'virtual environment' pip install --require-hashes -r "$root/requirements.lock" ||
        fail 'the packages of requirements.lock could not be installed' \
            "see the output of pip above; check its index ($venv/bin/pip config list)"
    pip install --no-deps --no-build-isolation -e "$root"
    printf '%s\n' "$wanted" >"$stamp"
}

# Installs Playwright's browser if no package has one. Only tests of the console need it.
set_up_browser() {
    if have chromium || [ -x "$venv/bin/chromium" ]; then return; fi
    say "browser: fetching Playwright's Chromium"
    attempt browser env PLAYWRIGHT_BROWSERS_PATH="$venv/browsers" \
        "$venv/bin/python" -m playwright install --with-deps --no-shell chromium >&2 || true
    chrome=$(find "$venv/browsers" -path '*/chrome-linux*/chrome' 2>/dev/null | sort | tail -n 1)
    if [ -n "$chrome" ]; then
        ln -sf "$chrome" "$venv/bin/chromium"
    else
        say 'browser: not available; `make web` and `make test` will fail'
    fi
}

set_up_image() {
    say 'container images: building them if missing (minutes the first time)'
    (cd "$root" && "$venv/bin/python" -m testbed.setup.image >&2)
}

set_up_recorder() { (cd "$root" && "$venv/bin/python" -m recorder.build >&2); }

[ "$(id -u)" -eq 0 ] || fail 'set-up needs root' 'run it with sudo'
set_up_packages
set_up_venv
set_up_recorder
set_up_browser
set_up_image
say 'done'
