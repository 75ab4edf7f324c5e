BEGIN TRANSACTION;
CREATE TABLE audit (
	id INTEGER NOT NULL, 
	stamp VARCHAR(64), 
	at DOUBLE NOT NULL, 
	run VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	who VARCHAR NOT NULL, 
	what VARCHAR NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (stamp)
);
INSERT INTO "audit" VALUES(1,NULL,1004.6,'old','joined','aa','key');
CREATE TABLE decisions (
	id INTEGER NOT NULL, 
	stamp VARCHAR(64), 
	run_id INTEGER NOT NULL, 
	round INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	what VARCHAR NOT NULL, 
	basis VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (stamp), 
	FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE TABLE device_rounds (
	round_id INTEGER NOT NULL, 
	device_id INTEGER NOT NULL, 
	finished INTEGER NOT NULL, 
	counted INTEGER NOT NULL, 
	steps INTEGER NOT NULL, 
	busy_s DOUBLE NOT NULL, 
	step_s DOUBLE, 
	spread_s DOUBLE, 
	upload_s DOUBLE NOT NULL, 
	download_s DOUBLE NOT NULL, 
	up_bytes BIGINT NOT NULL, 
	down_bytes BIGINT NOT NULL, 
	control_bytes BIGINT NOT NULL, 
	refused INTEGER NOT NULL, 
	implausible INTEGER NOT NULL, 
	failure VARCHAR, 
	link VARCHAR, 
	PRIMARY KEY (round_id, device_id), 
	FOREIGN KEY(round_id) REFERENCES rounds (id), 
	FOREIGN KEY(device_id) REFERENCES devices (id)
)
 WITHOUT ROWID

;
INSERT INTO "device_rounds" VALUES(1,1,8,6,32,0.5,0.015,NULL,0.0,0.0,1000,0,0,0,0,NULL,'session');
INSERT INTO "device_rounds" VALUES(2,1,8,6,32,0.5,0.015,NULL,0.0,0.0,1000,0,0,0,0,NULL,'session');
CREATE TABLE devices (
	id INTEGER NOT NULL, 
	"key" VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	site VARCHAR NOT NULL, 
	link VARCHAR NOT NULL, 
	first_seen DOUBLE NOT NULL, 
	last_seen DOUBLE NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE ("key")
);
INSERT INTO "devices" VALUES(1,'aa','quick','','',1000.5,1004.0);
CREATE TABLE fedgc_schema (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT fedgc_schema_pkc PRIMARY KEY (version_num)
);
INSERT INTO "fedgc_schema" VALUES('0001');
CREATE TABLE recents (
	task_id INTEGER NOT NULL, 
	slot INTEGER NOT NULL, 
	device_id INTEGER NOT NULL, 
	round_id INTEGER NOT NULL, 
	PRIMARY KEY (task_id, slot, device_id), 
	FOREIGN KEY(task_id) REFERENCES tasks (id), 
	FOREIGN KEY(device_id) REFERENCES devices (id), 
	FOREIGN KEY(round_id) REFERENCES rounds (id)
)
 WITHOUT ROWID

;
INSERT INTO "recents" VALUES(1,0,1,1);
INSERT INTO "recents" VALUES(1,1,1,2);
CREATE TABLE rounds (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	round INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	started DOUBLE NOT NULL, 
	working_s DOUBLE NOT NULL, 
	collecting_s DOUBLE NOT NULL, 
	outcome VARCHAR NOT NULL, 
	chunks INTEGER NOT NULL, 
	covered INTEGER NOT NULL, 
	short VARCHAR NOT NULL, 
	replicas INTEGER NOT NULL, 
	blocks INTEGER NOT NULL, 
	needed INTEGER NOT NULL, 
	amplification DOUBLE, 
	error DOUBLE, 
	loss DOUBLE, 
	samples BIGINT NOT NULL, 
	skips INTEGER NOT NULL, 
	takes INTEGER NOT NULL, 
	pruned INTEGER NOT NULL, 
	repairs INTEGER NOT NULL, 
	reason VARCHAR NOT NULL, 
	metrics VARCHAR NOT NULL, 
	devices INTEGER NOT NULL, 
	finished BIGINT NOT NULL, 
	counted BIGINT NOT NULL, 
	up_bytes BIGINT NOT NULL, 
	down_bytes BIGINT NOT NULL, 
	control_bytes BIGINT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (run_id, round), 
	FOREIGN KEY(run_id) REFERENCES runs (id)
);
INSERT INTO "rounds" VALUES(1,1,1,0,1001.0,0.5,0.25,'synced',8,8,'[]',2,1,2,1.5,NULL,0.5,80,1,2,0,0,'every round','{}',1,8,6,1000,0,0);
INSERT INTO "rounds" VALUES(2,1,2,1,1002.0,0.5,0.25,'approximate',8,7,'[3]',2,1,2,1.5,NULL,0.5,80,1,2,0,0,'every round','{"accuracy": 0.5}',1,8,6,1000,0,0);
CREATE TABLE runs (
	id INTEGER NOT NULL, 
	"key" VARCHAR NOT NULL, 
	task_id INTEGER NOT NULL, 
	settings VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	started DOUBLE NOT NULL, 
	ended DOUBLE, 
	present VARCHAR NOT NULL, 
	present_at DOUBLE NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE ("key"), 
	FOREIGN KEY(task_id) REFERENCES tasks (id)
);
INSERT INTO "runs" VALUES(1,'old',1,'{"task": "digits", "rounds": 2}','completed','',1000.0,1005.0,'{}',1005.0);
CREATE TABLE summaries (
	run_id INTEGER NOT NULL, 
	device_id INTEGER NOT NULL, 
	rows INTEGER NOT NULL, 
	finished BIGINT NOT NULL, 
	counted BIGINT NOT NULL, 
	steps BIGINT NOT NULL, 
	busy_s DOUBLE NOT NULL, 
	timed INTEGER NOT NULL, 
	step_sum_s DOUBLE NOT NULL, 
	step_squares DOUBLE NOT NULL, 
	upload_s DOUBLE NOT NULL, 
	download_s DOUBLE NOT NULL, 
	up_bytes BIGINT NOT NULL, 
	down_bytes BIGINT NOT NULL, 
	control_bytes BIGINT NOT NULL, 
	refused INTEGER NOT NULL, 
	implausible INTEGER NOT NULL, 
	failures INTEGER NOT NULL, 
	PRIMARY KEY (run_id, device_id), 
	FOREIGN KEY(run_id) REFERENCES runs (id), 
	FOREIGN KEY(device_id) REFERENCES devices (id)
)
 WITHOUT ROWID

;
CREATE TABLE tasks (
	id INTEGER NOT NULL, 
	name VARCHAR NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (name)
);
INSERT INTO "tasks" VALUES(1,'digits');
CREATE TABLE tracks (
	task_id INTEGER NOT NULL, 
	device_id INTEGER NOT NULL, 
	rows INTEGER NOT NULL, 
	finished BIGINT NOT NULL, 
	counted BIGINT NOT NULL, 
	failures INTEGER NOT NULL, 
	implausible INTEGER NOT NULL, 
	PRIMARY KEY (task_id, device_id), 
	FOREIGN KEY(task_id) REFERENCES tasks (id), 
	FOREIGN KEY(device_id) REFERENCES devices (id)
)
 WITHOUT ROWID

;
INSERT INTO "tracks" VALUES(1,1,2,16,12,0,0);
CREATE INDEX ix_decisions_run_id ON decisions (run_id);
CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'the audit is only ever added to'); END;
CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'the audit is only ever added to'); END;
COMMIT;
