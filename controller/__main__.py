"""``python -m controller``: the controller as a process of its own."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from controller.api.gate.origins import origin_of
from controller.base.errors import ServiceError
from controller.daemon import logs, start
from controller.daemon.keeper import keep
from controller.daemon.listen import PeopleOptions, api_socket, proxy_network
from controller.daemon.pulse import Pulse, notify
from controller.daemon.relay import relayed
from controller.devices.openflow.session.listen import Listener
from controller.devices.openflow.session.tls import read_speech
from controller.reconcile.drift_policy import DriftPolicy
from sitefile import SiteFileError, load_site

DEFAULT_IMAGE = "lightloom/trainer:latest"
DEFAULT_STATE_DIR = Path("/var/lib/lightloom/controller")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the controller; 2 for a bad site file, 1 with one line on stderr when it cannot run."""
    parser = argparse.ArgumentParser(prog="lightloom controller", description="The controller.")
    parser.add_argument("--site", type=Path, required=True, help="the site file")
    parser.add_argument(
        "--state-dir", type=Path, default=DEFAULT_STATE_DIR, help="default: %(default)s"
    )
    parser.add_argument("--api-listen", metavar="HOST:PORT", help="default: the site file's")
    parser.add_argument("--openflow-listen", metavar="HOST:PORT", help="default: the site file's")
    parser.add_argument("--openflow-netns", metavar="NAME", help="default: the site file's")
    parser.add_argument(
        "--image", default=DEFAULT_IMAGE, help="image of jobs that name none; default: %(default)s"
    )
    parser.add_argument(
        "--drift",
        type=DriftPolicy,
        choices=list(DriftPolicy),
        default=DriftPolicy.REPAIR,
        help="when a device differs from the intent; default: %(default)s",
    )
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="serve the API over TLS")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key, mode 0600")
    parser.add_argument(
        "--public-url",
        action="append",
        default=[],
        metavar="URL",
        help="where browsers find the console, besides the names of the certificate: "
        "https://HOST[:PORT] of a proxy; may be repeated",
    )
    parser.add_argument(
        "--trusted-proxy",
        action="append",
        default=[],
        metavar="ADDR",
        help="believe X-Forwarded-For and X-Forwarded-Proto of this address or network; "
        "may be repeated; default: of none",
    )
    parser.add_argument(
        "--sink",
        action="append",
        default=[],
        metavar="URL",
        help="send events there: syslog://HOST[:514] or https://…; may be repeated",
    )
    parser.add_argument(
        "--insecure-no-auth",
        action="store_true",
        help="every user of this machine is an admin; only on loopback",
    )
    parser.add_argument(
        "--agent-tls",
        type=Path,
        metavar="DIR",
        help="of `lightloom pki issue controller`: mutual TLS with the agents",
    )
    parser.add_argument(
        "--openflow-tls",
        type=Path,
        metavar="DIR",
        help="the same of the aggregators' authority: mutual TLS with the aggregators",
    )
    parser.add_argument(
        "--take-command",
        action="store_true",
        help="after a loss of the store: agents obey this controller and no earlier one; make sure"
        " that no other controller runs",
    )
    parser.add_argument(
        "--no-keeper",
        action="store_true",
        help="run without the parent that holds the connections and restarts the controller",
    )
    options = parser.parse_args(argv)
    logs.configure(sys.stderr)
    return exit_code(lambda: _run(options))


def exit_code(run: Callable[[], int]) -> int:
    """Return what ``run`` returns; 2 or 1, and a line on stderr, for what prevents it."""
    try:
        return run()
    except SiteFileError as error:
        print(error, file=sys.stderr)
        return 2
    except ServiceError as error:
        hint = f" ({error.hint})" if error.hint else ""
        print(f"{error.code}: {error.object}: {error.message}{hint}", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    """Lock, listen, and only then load the rest of the program: see ``daemon.start``."""
    site = load_site(options.site)
    site = dataclasses.replace(
        site,
        api_listen=options.api_listen or site.api_listen,
        openflow_listen=options.openflow_listen or site.openflow_listen,
        openflow_netns=options.openflow_netns or site.openflow_netns,
    )
    people = PeopleOptions(
        cert=options.tls_cert,
        key=options.tls_key,
        public_urls=tuple(map(origin_of, options.public_url)),
        proxies=tuple(map(proxy_network, options.trusted_proxy)),
        sinks=tuple(options.sink),
        open=options.insecure_no_auth,
    )

    def serve(listener: Listener, pulse: Pulse) -> int:
        gc.disable()  # until the recovery is over, because objects that are made now stay
        from controller.daemon.compose import run  # noqa: PLC0415 - takes about a second

        run(
            site,
            options.state_dir,
            listener,
            api,
            image=options.image,
            drift=options.drift,
            people=people,
            agent_tls=options.agent_tls,
            take_command=options.take_command,
            pulse=pulse,
        )
        return 0

    with (
        start.only_one(options.state_dir),
        start.openflow_listener(site) as openflow,
        api_socket(site.api_listen, people) as api,
    ):
        speech = read_speech(site, options.openflow_tls)
        if options.no_keeper:
            with relayed(openflow, speech) as listener:
                return serve(listener, notify)

        def child(listener: Listener, pulse: Pulse) -> int:
            return exit_code(lambda: serve(listener, pulse))

        return keep(openflow, child, _load, speech)


def _load() -> None:
    """Import all that a controller needs."""
    for module in ("controller.daemon.compose", "controller.daemon.serving"):
        importlib.import_module(module)


if __name__ == "__main__":
    sys.exit(main())
