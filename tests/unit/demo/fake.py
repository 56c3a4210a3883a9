"""Implements an in-memory controller: enough of the REST API for one run of the experiment."""

import json
from typing import Any

import httpx

Document = dict[str, Any]
START = 1_000.0
STEPS_SHOWN_OF_BLUE = 6


class FakeController:
    """Responds like the REST API. Steps take 0.25 s under one aggregator."""

    def __init__(self, homes: dict[str, str]) -> None:
        self.homes = dict(homes)
        self.epoch = 7
        self.jobs: dict[str, Document] = {}
        self.submitted: list[Document] = []
        self.transactions: list[Document] = []
        self.final_loss = 0.375
        self.fail_blue = False
        self.scattered_step_s = 1.0

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/api/v1")
        body = json.loads(request.content) if request.content else None
        parts = path.strip("/").split("/")
        if request.method == "POST":
            return self._change(parts, body)
        if parts[0] == "jobs" and parts[-1] == "logs":
            return httpx.Response(200, text="".join(self._logs(self.jobs[parts[1]])))
        found = self._read(parts)
        if found is not None:
            return httpx.Response(200, json=found)
        problem = {"code": "not_found", "detail": f"no {path}", "object": path, "hint": "look"}
        return httpx.Response(404, json=problem)

    def _read(self, parts: list[str]) -> Document | None:
        if parts[0] == "jobs" and len(parts) == 2:
            return self.jobs.get(parts[1])
        lists: dict[str, list[Document]] = {
            "endpoints": [{"name": name, "home": home} for name, home in self.homes.items()],
            "jobs": list(self.jobs.values()),
            "containers": [
                {"job": name, "rank": rank, "container_id": f"{name}-{rank}"}
                for name, job in self.jobs.items()
                for rank in range(job["count"])
            ],
        }
        if parts[0] in lists:
            return {"items": lists[parts[0]], "epoch": self.epoch}
        return {
            "site": {"name": "paper"},
            "series": self._series(),
            "health": {"emulated": ["endpoint/gpu0"]},
        }.get(parts[0])

    def _change(self, parts: list[str], body: Document | None) -> httpx.Response:
        if parts == ["jobs"] and body is not None:
            self.submitted.append(body)
            if body["locality"] == "regroup":
                self.homes |= dict.fromkeys(body["endpoints"], f"as{len(self.jobs) % 2}")
            self.jobs[body["name"]] = {
                **body,
                "state": "failed" if self.fail_blue and "blue" in body["name"] else "running",
                "reason": "rank 0 exited with 1" if self.fail_blue else "",
                "restarts": 0,
                "ranks": [{"dark_time_s": 0.0} for _ in range(body["count"])],
            }
            return httpx.Response(201, json=self.jobs[body["name"]])
        if parts[-1] == "cancel":
            self.jobs[parts[1]]["state"] = "cancelled"
            return httpx.Response(200, json=self.jobs[parts[1]])
        if parts == ["plans"]:
            moves = [{"endpoint": "gpu2", "from": "as1", "to": "as0"}]
            return httpx.Response(200, json={"id": "p1", "epoch": self.epoch, "moves": moves})
        assert parts == ["transactions"]
        assert body is not None
        for move in body["plan"]["moves"]:
            assert self.homes[move["endpoint"]] == move["from"]
            self.homes[move["endpoint"]] = move["to"]
        for job in self.jobs.values():
            if job["state"] != "cancelled":
                job["ranks"] = [{"dark_time_s": 0.21} for _ in job["ranks"]]
        self.epoch += 1
        done = {
            "id": f"t{len(self.transactions)}",
            "state": "committed",
            "started_at": START + 18.4,
            "phases": [
                {"name": "quiesce", "started_at": START + 18.4},
                {"name": "drain", "started_at": START + 20.4},
                {"name": "switch", "started_at": START + 20.5},
            ],
            "finished_at": START + 20.9,
            "error": "",
            "result": "",
        }
        self.transactions.append(body["plan"])
        return httpx.Response(202, json=done)

    def _logs(self, job: Document) -> list[str]:
        words = job["command"]
        batch = int(words[words.index("--global-batch") + 1])
        steps = int(words[words.index("--samples") + 1]) // batch
        blue = "blue" in job["name"]
        shown = min(steps, STEPS_SHOWN_OF_BLUE) if blue else steps
        lines: list[Document] = [{"event": "start", "t": START, "gradient_bytes": 4_088_680}]
        t = START
        regrouped = job["locality"] == "regroup"
        for step in range(shown):
            live = "live" in job["name"] and step > steps // 3
            together = regrouped or live or job["name"].startswith("pair")
            step_s = 0.25 if together else self.scattered_step_s
            t += step_s
            line = {"event": "step", "step": step, "t": t, "step_s": step_s, "loss": 2.0}
            lines.append({**line, "compute_s": 0.2, "comm_s": step_s - 0.2, "samples_s": 192.0})
        if not blue:
            completion = t - START
            end = {"completion_s": completion, "samples_s": steps * 192 / completion}
            end |= {"final_loss": self.final_loss, "accuracy": 0.9, "step_s_median": 1.0}
            lines.append({"event": "end", **end, "exposed_comm_fraction": 0.8})
            job["state"] = "completed"
        return [
            json.dumps({"rank": rank, "time": t, "stream": "stdout", "text": json.dumps(line)})
            + "\n"
            for rank in range(job["count"])
            for line in lines
        ]

    def _series(self) -> Document:
        times = [START + second for second in range(30)]
        lines = [
            {
                "job": name,
                "rank": rank,
                "endpoint": job["endpoints"][rank],
                "server": "srv0",
                "rx_bps": [None, *([40e6] * 29)],
                "tx_bps": [40e6] * 30,
                "utilisation": [None, *([0.5] * 29)],
            }
            for name, job in self.jobs.items()
            for rank in range(job["count"])
        ]
        return {"interval_s": 1.0, "times": times, "containers": lines, "markers": []}
