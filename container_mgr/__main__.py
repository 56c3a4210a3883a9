"""``python -m container_mgr``: runs the agent as a process."""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
from collections.abc import Mapping
from pathlib import Path

import structlog

from container_mgr.daemon import (
    OBSERVED,
    AgentConfig,
    AgentStartError,
    parse_endpoints,
    parse_users,
    parse_volumes,
    run,
)
from container_mgr.hardware.nvml import DEFAULT_LIBRARY
from container_mgr.users import DEFAULT_ID
from container_mgr.values import LogLimits


def main() -> int:
    """Run the agent. Returns 1, after one line on stderr, when it cannot serve."""
    parser = argparse.ArgumentParser(prog="container_mgr", description="The per-server agent.")
    parser.add_argument("--server", required=True, help="this server's name in the site file")
    parser.add_argument("--listen", default="127.0.0.1:7701", metavar="HOST:PORT")
    parser.add_argument(
        "--transfer",
        default="",
        metavar="HOST:PORT",
        help="where parts of checkpoints are given to other agents; default: the host of --listen"
        " and any port",
    )
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
        help="mutual TLS: files of `lightloom pki issue agent`",
    )
    parser.add_argument(
        "--nvml-library", default=DEFAULT_LIBRARY, metavar="FILE", help="default: %(default)s"
    )
    parser.add_argument(
        "--job-map", type=Path, metavar="DIR", help="for dcgm-exporter --hpc-job-mapping-dir"
    )
    parser.add_argument(
        "--require-digest", action="store_true", help="refuse images named by a tag, which may move"
    )
    parser.add_argument(
        "--registry",
        action="append",
        default=[],
        metavar="HOST[:PORT][/PATH]",
        help="images may be fetched from here; repeatable (default: none are fetched)",
    )
    parser.add_argument(
        "--volume",
        action="append",
        default=[],
        metavar="NAME=PATH[:ro|rw][,mount]",
        help="a directory that jobs may mount by name; repeatable. ro (the default): every job"
        " reads only. mount: a file system must be mounted at PATH",
    )
    parser.add_argument(
        "--volumes",
        type=Path,
        metavar="FILE",
        help="the same in YAML: NAME: {path: PATH, mode: ro|rw, mount: true|false}",
    )
    parser.add_argument(
        "--user",
        default=str(DEFAULT_ID),
        metavar="UID[:GID]",
        help="ranks run as this user unless the site file gives another (default: %(default)s)",
    )
    parser.add_argument(
        "--uids",
        default="1000-60000",
        metavar="LOW-HIGH",
        help="users and groups that the site file may give to ranks (default: %(default)s)",
    )
    parser.add_argument(
        "--log-dir",
        type=Path,
        metavar="DIR",
        help="keeps the output of removed containers;"
        " default: /var/lib/lightloom/agent-SERVER/logs, or logs in --state-dir if that is given",
    )
    parser.add_argument(
        "--checkpoint-dir",
        type=Path,
        metavar="DIR",
        help="keeps the checkpoints of ranks; default: /var/lib/lightloom/agent-SERVER/checkpoints,"
        " or checkpoints in --state-dir if that is given",
    )
    parser.add_argument(
        "--rank-memory",
        type=_bytes,
        default=0,
        metavar="SIZE",
        help="most memory of one rank, checkpoints in memory included, e.g. 512GiB; together ranks"
        " never get more than the server has (default: its memory divided by its endpoints)",
    )
    kept = LogLimits()
    parser.add_argument(
        "--keep-logs", type=float, default=kept.keep_s, metavar="SECONDS",
        help="how long output is kept after a container's removal (default: %(default).0f)",
    )  # fmt: skip
    parser.add_argument(
        "--logs-per-rank", type=int, default=kept.rank_bytes, metavar="BYTES",
        help="output kept of one container, while it runs as well (default: %(default)d)",
    )  # fmt: skip
    parser.add_argument(
        "--logs-total", type=int, default=kept.total_bytes, metavar="BYTES",
        help="output kept of all removed containers; the oldest goes first (default: %(default)d)",
    )  # fmt: skip
    parser.add_argument(
        "--image-space",
        type=_bytes,
        metavar="SIZE",
        help="remove pulled images beyond this, least recently used first, e.g. 200GiB"
        " (default: no limit)",
    )
    parser.add_argument(
        "--keep-images",
        type=_seconds,
        metavar="TIME",
        help="remove pulled images that no job has used for this long, e.g. 14d (default: never)",
    )
    parser.add_argument(
        "--ask-profilers",
        action="store_true",
        help="ask TensorFlow's workers of jobs with record: full for windows of their profiler;"
        " TensorFlow 2.21 may crash of it (docs/measure.md; default: no)",
    )
    parser.add_argument(
        "--observe",
        default="",
        metavar="|".join(OBSERVED),
        help="the controller may freeze and thaw the processes of this scheduler's jobs"
        " (default: no scheduler)",
    )
    parser.add_argument(
        "--observe-nodes",
        default="",
        metavar="NODE,...",
        help="with several daemons of it on this machine: the nodes of this server (default: all)",
    )
    parser.add_argument(
        "--observe-below",
        default="",
        metavar="CGROUP",
        help="the cgroup below which the scheduler makes its own, e.g. when its daemons run in a"
        " container (default: the top)",
    )
    options = parser.parse_args()
    structlog.configure(
        processors=log_processors(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        run(
            AgentConfig(
                server=options.server,
                listen=options.listen,
                transfer=options.transfer,
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
                volumes=parse_volumes(options.volume, options.volumes),
                users=parse_users(options.user, options.uids),
                log_dir=options.log_dir,
                checkpoint_dir=options.checkpoint_dir,
                rank_memory_bytes=options.rank_memory,
                logs=LogLimits(options.keep_logs, options.logs_per_rank, options.logs_total),
                image_space_bytes=options.image_space,
                keep_images_s=options.keep_images,
                ask_profilers=options.ask_profilers,
                observe=options.observe,
                observe_nodes=[n.strip() for n in options.observe_nodes.split(",") if n.strip()],
                observe_below=options.observe_below,
                ready=_print_ready,
            )
        )
    except AgentStartError as error:
        print(f"{error.code}: {error.obj}: {error} ({error.hint})", file=sys.stderr)
        return 1
    return 0


def _bytes(text: str) -> int:
    return int(_amount(text, {"MiB": 2**20, "GiB": 2**30, "TiB": 2**40}))


def _seconds(text: str) -> float:
    return _amount(text, {"h": 3600, "d": 86400})


def _amount(text: str, units: Mapping[str, int]) -> float:
    unit = next((u for u in units if text.endswith(u)), None)
    try:
        value = float(text.removesuffix(unit or ""))
    except ValueError:
        value = -1.0
    if unit is None or not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number with {' or '.join(units)}")
    return value * units[unit]


def log_processors() -> list[structlog.typing.Processor]:
    """Format log lines for people on a terminal, elsewhere as one JSON document per line."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if sys.stderr.isatty():
        # The default shows the values of local variables, which may be secrets.
        plain = structlog.dev.plain_traceback
        return [*shared, structlog.dev.ConsoleRenderer(exception_formatter=plain)]
    return [*shared, structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _print_ready(address: str) -> None:
    """Print one JSON line on stdout for the process that started this one."""
    print(json.dumps({"event": "listening", "address": address}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
