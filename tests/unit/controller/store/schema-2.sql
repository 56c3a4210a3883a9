BEGIN TRANSACTION;
CREATE TABLE allocations (
	endpoint VARCHAR(63) NOT NULL, 
	job VARCHAR(63) NOT NULL, 
	rank INTEGER NOT NULL, 
	PRIMARY KEY (endpoint), 
	UNIQUE (job, rank)
);
INSERT INTO "allocations" VALUES('gpu0','red',0);
INSERT INTO "allocations" VALUES('gpu2','red',1);
INSERT INTO "allocations" VALUES('gpu1','red',2);
INSERT INTO "allocations" VALUES('gpu3','red',3);
INSERT INTO "allocations" VALUES('gpu4','blue',0);
INSERT INTO "allocations" VALUES('gpu5','blue',1);
CREATE TABLE answers (
	id VARCHAR(64) NOT NULL, 
	print VARCHAR(64) NOT NULL, 
	at FLOAT NOT NULL, 
	status INTEGER, 
	headers TEXT NOT NULL, 
	body BLOB, 
	size INTEGER NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE attachments (
	endpoint VARCHAR(63) NOT NULL, 
	aggregator VARCHAR(63) NOT NULL, 
	port INTEGER NOT NULL, 
	epoch BIGINT NOT NULL, 
	PRIMARY KEY (endpoint), 
	UNIQUE (aggregator, port)
);
INSERT INTO "attachments" VALUES('gpu0','as0',1,1);
INSERT INTO "attachments" VALUES('gpu1','as0',2,1);
INSERT INTO "attachments" VALUES('gpu2','as1',1,1);
INSERT INTO "attachments" VALUES('gpu3','as1',2,1);
INSERT INTO "attachments" VALUES('gpu4','as0',3,1);
INSERT INTO "attachments" VALUES('gpu5','as1',3,1);
CREATE TABLE checkpoints (
	folder TEXT NOT NULL, 
	job TEXT NOT NULL, 
	body TEXT NOT NULL, 
	PRIMARY KEY (folder)
);
CREATE TABLE comms (
	job TEXT NOT NULL, 
	submitted_at FLOAT NOT NULL, 
	kept_at FLOAT NOT NULL, 
	ranks BIGINT NOT NULL, 
	calls BIGINT NOT NULL, 
	facts TEXT NOT NULL, 
	body TEXT NOT NULL, 
	PRIMARY KEY (job)
);
CREATE TABLE events (
	id BIGINT NOT NULL, 
	time FLOAT NOT NULL, 
	severity VARCHAR(8) NOT NULL, 
	object VARCHAR(127) NOT NULL, 
	reason VARCHAR(63) NOT NULL, 
	message TEXT NOT NULL, 
	epoch BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "events" VALUES(1,1.79599954238769793507e+09,'info','switch/ocs0','SwitchConnected','its circuits are being read',0);
INSERT INTO "events" VALUES(2,1.79599954253514575955e+09,'info','transaction/t1','RewiringCommitted','every path of the new epoch is proven',1);
INSERT INTO "events" VALUES(3,1.79599954253758239746e+09,'info','job/red','JobSubmitted','wants 4 endpoints',1);
INSERT INTO "events" VALUES(4,1.79599954256002426146e+09,'info','job/blue','JobSubmitted','wants 2 endpoints',1);
INSERT INTO "events" VALUES(5,1.79599954266069841389e+09,'info','job/red','JobStarted','gpu0 under as0, gpu2 under as1, gpu1 under as0, gpu3 under as1',3);
INSERT INTO "events" VALUES(6,1.79599954271505761146e+09,'info','job/blue','JobStarted','gpu4 under as0, gpu5 under as1',3);
INSERT INTO "events" VALUES(7,1.79599954272536897663e+09,'info','transaction/t2','RegroupStarted','3 endpoints move, red, blue touched',3);
CREATE TABLE facts (
	"key" VARCHAR(63) NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "facts" VALUES('schema','2');
INSERT INTO "facts" VALUES('unknown_epochs','[]');
INSERT INTO "facts" VALUES('term','1');
INSERT INTO "facts" VALUES('epoch','3');
INSERT INTO "facts" VALUES('transactions','2');
INSERT INTO "facts" VALUES('measurements','0');
INSERT INTO "facts" VALUES('detached','[]');
INSERT INTO "facts" VALUES('regroup_looked_at','null');
INSERT INTO "facts" VALUES('regroup_scheduled_at','null');
INSERT INTO "facts" VALUES('predictions','2');
INSERT INTO "facts" VALUES('recoveries','0');
INSERT INTO "facts" VALUES('rollouts','0');
INSERT INTO "facts" VALUES('recoveries_forgotten','{}');
INSERT INTO "facts" VALUES('recoveries_since','1795999542.3708444');
INSERT INTO "facts" VALUES('promises','[]');
INSERT INTO "facts" VALUES('left_runs','[]');
INSERT INTO "facts" VALUES('left_places','[]');
INSERT INTO "facts" VALUES('commits','12');
CREATE TABLE jobs (
	name VARCHAR(63) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	submitted_at FLOAT NOT NULL, 
	body TEXT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "jobs" VALUES('red','running',1795999542.53694,'{"name": "red", "request": {"name": "red", "count": 4, "project": "default", "priority": 0, "time_limit_s": null, "pinned": false, "preemptible": false, "locality": "preferred", "policy": "pause", "rank_order": "placed", "image": null, "command": ["true"], "env": {}, "endpoints": ["gpu0", "gpu2", "gpu1", "gpu3"], "model": null, "min_memory_bytes": 0, "dark_tolerance_s": null, "checkpoint_grace_s": null, "restart": "never", "pull": "never", "cpu": null, "memory_bytes": null, "io_bps": null, "volumes": [], "time_limit_action": "ignore", "secrets": {}, "record": "counts", "probe": false, "checkpoint": null, "spares": 0, "spares_needed": true, "on_loss": "wait", "at_least": 1}, "image": "image:1", "submitted_at": 1795999542.53694, "state": "running", "reason": "", "endpoints": ["gpu0", "gpu2", "gpu1", "gpu3"], "epoch": 2, "restarts": 0, "failures": 0, "started_at": 1795999542.6605613, "finished_at": null, "exit_codes": [null, null, null, null], "dark_time_s": {}, "final_homes": [], "reserved_at": null, "could_start_at": null, "pauses": {}, "failure": null, "image_digest": "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "user": "", "spares": [], "folder": "", "observed": null}');
INSERT INTO "jobs" VALUES('blue','running',1.79599954255956459044e+09,'{"name": "blue", "request": {"name": "blue", "count": 2, "project": "default", "priority": 0, "time_limit_s": null, "pinned": false, "preemptible": false, "locality": "preferred", "policy": "pause", "rank_order": "aggregator", "image": null, "command": ["true"], "env": {}, "endpoints": [], "model": null, "min_memory_bytes": 0, "dark_tolerance_s": null, "checkpoint_grace_s": null, "restart": "never", "pull": "never", "cpu": null, "memory_bytes": null, "io_bps": null, "volumes": [], "time_limit_action": "ignore", "secrets": {}, "record": "counts", "probe": false, "checkpoint": null, "spares": 0, "spares_needed": true, "on_loss": "wait", "at_least": 1}, "image": "image:1", "submitted_at": 1795999542.5595646, "state": "running", "reason": "", "endpoints": ["gpu4", "gpu5"], "epoch": 3, "restarts": 0, "failures": 0, "started_at": 1795999542.7148724, "finished_at": null, "exit_codes": [null, null], "dark_time_s": {}, "final_homes": [], "reserved_at": null, "could_start_at": null, "pauses": {}, "failure": null, "image_digest": "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "user": "", "spares": [], "folder": "", "observed": null}');
CREATE TABLE measurements (
	id VARCHAR(63) NOT NULL, 
	type VARCHAR(16) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	submitted_at FLOAT NOT NULL, 
	body TEXT NOT NULL, 
	result TEXT, 
	PRIMARY KEY (id)
);
CREATE TABLE notices (
	id TEXT NOT NULL, 
	receiver TEXT NOT NULL, 
	job TEXT NOT NULL, 
	body TEXT NOT NULL, 
	created_at FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE predictions (
	id TEXT NOT NULL, 
	job TEXT NOT NULL, 
	made_at FLOAT NOT NULL, 
	body TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "predictions" VALUES('p1','red',1.79599954272504472732e+09,'{"id": "p1", "job": "red", "submitted_at": 1795999542.53694, "project": "default", "cause": "plan", "made_at": 1795999542.7250447, "homes": {"gpu0": "as0", "gpu2": "as0", "gpu1": "as0", "gpu3": "as0"}, "low_s": null, "high_s": null, "step_before_s": null, "basis": ["link rates of the site file", "nothing was measured of its steps yet: submit it with --record counts, or let it print each step as a line of JSON"], "spec": "", "state": "open", "measured_s": null, "measured_at": null, "error": null}');
INSERT INTO "predictions" VALUES('p2','blue',1.79599954272527766226e+09,'{"id": "p2", "job": "blue", "submitted_at": 1795999542.5595646, "project": "default", "cause": "plan", "made_at": 1795999542.7252777, "homes": {"gpu4": "as1", "gpu5": "as1"}, "low_s": null, "high_s": null, "step_before_s": null, "basis": ["link rates of the site file", "nothing was measured of its steps yet: submit it with --record counts, or let it print each step as a line of JSON"], "spec": "", "state": "open", "measured_s": null, "measured_at": null, "error": null}');
CREATE TABLE quarantine (
	object TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	since FLOAT NOT NULL, 
	PRIMARY KEY (object)
);
INSERT INTO "quarantine" VALUES('as1/4','a test',5.0);
CREATE TABLE recoveries (
	id TEXT NOT NULL, 
	job TEXT NOT NULL, 
	failed_at FLOAT NOT NULL, 
	body TEXT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE rollouts (
	id TEXT NOT NULL, 
	started_at FLOAT NOT NULL, 
	body TEXT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE transactions (
	id VARCHAR(63) NOT NULL, 
	finished BOOLEAN NOT NULL, 
	started_at FLOAT NOT NULL, 
	body TEXT NOT NULL, 
	intent TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "transactions" VALUES('t1',1,1.79599954243119430546e+09,'{"id": "t1", "state": "committed", "phase": "commit", "phases": [{"name": "admit", "started_at": 1795999542.4312124, "finished_at": 1795999542.4632044}, {"name": "quiesce", "started_at": 1795999542.4632044, "finished_at": 1795999542.4632044}, {"name": "drain", "started_at": 1795999542.4632044, "finished_at": 1795999542.4784744}, {"name": "switch", "started_at": 1795999542.4784744, "finished_at": 1795999542.5054438}, {"name": "qualify", "started_at": 1795999542.5054438, "finished_at": 1795999542.5191038}, {"name": "route", "started_at": 1795999542.5191038, "finished_at": 1795999542.519425}, {"name": "resume", "started_at": 1795999542.519425, "finished_at": 1795999542.519425}, {"name": "commit", "started_at": 1795999542.519425, "finished_at": 1795999542.5195706}], "cause": "homes", "plan_id": null, "epoch_before": 0, "epoch_after": 1, "moves": [{"endpoint": "gpu0", "source": null, "target": "as0"}, {"endpoint": "gpu1", "source": null, "target": "as0"}, {"endpoint": "gpu2", "source": null, "target": "as1"}, {"endpoint": "gpu3", "source": null, "target": "as1"}, {"endpoint": "gpu4", "source": null, "target": "as0"}, {"endpoint": "gpu5", "source": null, "target": "as1"}], "jobs": [], "dark_time_s": {}, "started_at": 1795999542.4311943, "finished_at": 1795999542.5195706, "result": "every path of the new epoch is proven", "error": "", "quarantined_ports": []}','{"before": {"gpu0": null, "gpu1": null, "gpu2": null, "gpu3": null, "gpu4": null, "gpu5": null}, "after": {"gpu0": ["as0", 1], "gpu1": ["as0", 2], "gpu2": ["as1", 1], "gpu3": ["as1", 2], "gpu4": ["as0", 3], "gpu5": ["as1", 3]}, "proven": true, "quiesced_jobs": [], "room": null}');
INSERT INTO "transactions" VALUES('t2',0,1.79599954272480940818e+09,'{"id": "t2", "state": "running", "phase": "admit", "phases": [{"name": "admit", "started_at": 1795999542.7256029, "finished_at": null}], "cause": "regroup", "plan_id": "5d096edeb27e", "epoch_before": 3, "epoch_after": null, "moves": [{"endpoint": "gpu2", "source": "as1", "target": "as0"}, {"endpoint": "gpu3", "source": "as1", "target": "as0"}, {"endpoint": "gpu4", "source": "as0", "target": "as1"}], "jobs": ["red", "blue"], "dark_time_s": {}, "started_at": 1795999542.7248094, "finished_at": null, "result": "", "error": "", "quarantined_ports": []}','{"before": {"gpu2": ["as1", 1], "gpu3": ["as1", 2], "gpu4": ["as0", 3]}, "after": {"gpu2": ["as0", 3], "gpu3": ["as0", 4], "gpu4": ["as1", 1]}, "proven": false, "quiesced_jobs": ["red", "blue"], "room": null}');
CREATE TABLE usage (
	id BIGINT NOT NULL, 
	job VARCHAR(63) NOT NULL, 
	submitted_at FLOAT NOT NULL, 
	project VARCHAR(63) NOT NULL, 
	user VARCHAR(127) NOT NULL, 
	endpoints INTEGER NOT NULL, 
	frozen BOOLEAN NOT NULL, 
	weight FLOAT NOT NULL, 
	since FLOAT NOT NULL, 
	until FLOAT, 
	first BOOLEAN NOT NULL, 
	dark_s FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "usage" VALUES(1,'red',1795999542.53694,'default','',4,0,2.0,1.79599954264300394057e+09,NULL,1,0.0);
INSERT INTO "usage" VALUES(2,'blue',1.79599954255956459044e+09,'default','',2,0,2.0,1.79599954265941882131e+09,NULL,1,0.0);
CREATE TABLE usage_days (
	id VARCHAR(255) NOT NULL, 
	day FLOAT NOT NULL, 
	project VARCHAR(63) NOT NULL, 
	user VARCHAR(127) NOT NULL, 
	held_s FLOAT NOT NULL, 
	frozen_s FLOAT NOT NULL, 
	dark_s FLOAT NOT NULL, 
	weighted_s FLOAT NOT NULL, 
	jobs INTEGER NOT NULL, 
	PRIMARY KEY (id)
);
CREATE INDEX ix_usage_until ON usage (until);
CREATE INDEX ix_usage_days_day ON usage_days (day);
CREATE INDEX ix_answers_at ON answers (at);
COMMIT;
