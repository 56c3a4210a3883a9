"""``python -m container_mgr``: the agent as a process of its own."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

import structlog

from container_mgr.daemon import AgentConfig, AgentStartError, parse_endpoints, run
from container_mgr.hardware.nvml import DEFAULT_LIBRARY
from container_mgr.log_form import log_form


def main() -> int:
    """Run the agent; 1 with one line on stderr when it cannot serve."""
    parser = argparse.ArgumentParser(prog="container_mgr", description="The per-server agent.")
    parser.add_argument("--server", required=True, help="this server's name in the site file")
    parser.add_argument("--listen", default="127.0.0.1:7701", metavar="HOST:PORT")
    parser.add_argument("--nic-netns", help="network namespace of the server's NICs")
    parser.add_argument("--docker-host", help="URL of the Docker Engine")
    parser.add_argument("--endpoints", default="", help="NAME=NIC,… or a JSON list")
    parser.add_argument("--state-dir", type=Path, help="default: /run/lightloom/agent-SERVER")
    parser.add_argument("--cgroup", default="ll-rack", help="parent cgroup of the containers")
    parser.add_argument(
        "--tls",
        type=Path,
        required=True,
        metavar="DIR",
        help="of `lightloom pki issue agent`: mutual TLS",
    )
    parser.add_argument(
        "--nvml-library", default=DEFAULT_LIBRARY, metavar="FILE", help="default: %(default)s"
    )
    parser.add_argument(
        "--job-map", type=Path, metavar="DIR", help="for dcgm-exporter --hpc-job-mapping-dir"
    )
    parser.add_argument(
        "--require-digest", action="store_true", help="take no image by a tag, which may move"
    )
    parser.add_argument(
        "--registry",
        action="append",
        default=[],
        metavar="HOST[:PORT][/PATH]",
        help="images may be fetched from here; repeat it for more (default: from nowhere)",
    )
    options = parser.parse_args()
    structlog.configure(
        processors=log_form(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        run(
            AgentConfig(
                server=options.server,
                listen=options.listen,
                nic_netns=options.nic_netns,
                docker_host=options.docker_host,
                endpoints=parse_endpoints(options.endpoints),
                state_dir=options.state_dir,
                cgroup=options.cgroup,
                tls=options.tls,
                nvml_library=options.nvml_library,
                job_map=options.job_map,
                require_digest=options.require_digest,
                registries=options.registry,
                ready=_print_ready,
            )
        )
    except AgentStartError as error:
        print(f"{error.code}: {error.obj}: {error} ({error.hint})", file=sys.stderr)
        return 1
    return 0


def _print_ready(address: str) -> None:
    """One JSON line on stdout, for whoever started this process."""
    print(json.dumps({"event": "listening", "address": address}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
