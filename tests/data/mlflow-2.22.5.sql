-- A SQLite database made by MLflow 2.22.5 through MlflowClient: an experiment, a run with a metric and a parameter, a
-- registered model with two versions, the aliases champion and shadow, a tag. Written by sqlite3's iterdump.
BEGIN TRANSACTION;
CREATE TABLE alembic_version ( version_num VARCHAR(32) NOT NULL,  CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0584bdc529eb');
CREATE TABLE "datasets" ( dataset_uuid VARCHAR(36) NOT NULL,  experiment_id INTEGER NOT NULL,  name VARCHAR(500) NOT NULL,  digest VARCHAR(36) NOT NULL,  dataset_source_type VARCHAR(36) NOT NULL,  dataset_source TEXT NOT NULL,  dataset_schema TEXT,  dataset_profile TEXT,  CONSTRAINT dataset_pk PRIMARY KEY (experiment_id, name, digest),  CONSTRAINT fk_datasets_experiment_id_experiments FOREIGN KEY(experiment_id) REFERENCES experiments (experiment_id) ON DELETE CASCADE
);
CREATE TABLE experiment_tags ( "key" VARCHAR(250) NOT NULL,  value VARCHAR(5000),  experiment_id INTEGER NOT NULL,  CONSTRAINT experiment_tag_pk PRIMARY KEY ("key", experiment_id),  FOREIGN KEY(experiment_id) REFERENCES experiments (experiment_id)
);
CREATE TABLE experiments ( experiment_id INTEGER NOT NULL,  name VARCHAR(256) NOT NULL,  artifact_location VARCHAR(256),  lifecycle_stage VARCHAR(32), creation_time BIGINT, last_update_time BIGINT,  CONSTRAINT experiment_pk PRIMARY KEY (experiment_id),  CONSTRAINT experiments_lifecycle_stage CHECK (lifecycle_stage IN ('active', 'deleted')),  UNIQUE (name)
);
INSERT INTO "experiments" VALUES(0,'Default','/nowhere/mlruns/0','active',1795478312960,1795478312960);
INSERT INTO "experiments" VALUES(1,'old-experiment','/nowhere/mlruns','active',1795478312968,1795478312968);
CREATE TABLE input_tags ( input_uuid VARCHAR(36) NOT NULL,  name VARCHAR(255) NOT NULL,  value VARCHAR(500) NOT NULL,  CONSTRAINT input_tags_pk PRIMARY KEY (input_uuid, name)
);
CREATE TABLE inputs ( input_uuid VARCHAR(36) NOT NULL,  source_type VARCHAR(36) NOT NULL,  source_id VARCHAR(36) NOT NULL,  destination_type VARCHAR(36) NOT NULL,  destination_id VARCHAR(36) NOT NULL,  CONSTRAINT inputs_pk PRIMARY KEY (source_type, source_id, destination_type, destination_id)
);
CREATE TABLE "latest_metrics" ( "key" VARCHAR(250) NOT NULL,  value FLOAT NOT NULL,  timestamp BIGINT,  step BIGINT NOT NULL,  is_nan BOOLEAN NOT NULL,  run_uuid VARCHAR(32) NOT NULL,  CONSTRAINT latest_metric_pk PRIMARY KEY ("key", run_uuid),  FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid),  CHECK (is_nan IN (0, 1))
);
INSERT INTO "latest_metrics" VALUES('loss',3.33333333333333314829e-01,1795478313083,2,0,'f2ad9a9cb60243bcab40fbb9607b3b19');
CREATE TABLE "metrics" ( "key" VARCHAR(250) NOT NULL,  value FLOAT NOT NULL,  timestamp BIGINT NOT NULL,  run_uuid VARCHAR(32) NOT NULL,  step BIGINT DEFAULT '0' NOT NULL,  is_nan BOOLEAN DEFAULT '0' NOT NULL,  CONSTRAINT metric_pk PRIMARY KEY ("key", timestamp, step, run_uuid, value, is_nan),  FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid),  CHECK (is_nan IN (0, 1))
);
INSERT INTO "metrics" VALUES('loss',1.0,1795478313031,'f2ad9a9cb60243bcab40fbb9607b3b19',0,0);
INSERT INTO "metrics" VALUES('loss',0.5,1795478313063,'f2ad9a9cb60243bcab40fbb9607b3b19',1,0);
INSERT INTO "metrics" VALUES('loss',3.33333333333333314829e-01,1795478313083,'f2ad9a9cb60243bcab40fbb9607b3b19',2,0);
CREATE TABLE model_version_tags ( "key" VARCHAR(250) NOT NULL,  value VARCHAR(5000),  name VARCHAR(256) NOT NULL,  version INTEGER NOT NULL,  CONSTRAINT model_version_tag_pk PRIMARY KEY ("key", name, version),  FOREIGN KEY(name, version) REFERENCES model_versions (name, version) ON UPDATE cascade
);
INSERT INTO "model_version_tags" VALUES('team','a','prod',1);
CREATE TABLE "model_versions" ( name VARCHAR(256) NOT NULL,  version INTEGER NOT NULL,  creation_time BIGINT,  last_updated_time BIGINT,  description VARCHAR(5000),  user_id VARCHAR(256),  current_stage VARCHAR(20),  source VARCHAR(500),  run_id VARCHAR(32),  status VARCHAR(20),  status_message VARCHAR(500),  run_link VARCHAR(500), storage_location VARCHAR(500),  CONSTRAINT model_version_pk PRIMARY KEY (name, version),  FOREIGN KEY(name) REFERENCES registered_models (name) ON UPDATE CASCADE
);
INSERT INTO "model_versions" VALUES('prod',1,1795478313207,1795478313207,NULL,NULL,'None','/nowhere/mlruns/model','f2ad9a9cb60243bcab40fbb9607b3b19','READY',NULL,NULL,'/nowhere/mlruns/model');
INSERT INTO "model_versions" VALUES('prod',2,1795478313247,1795478313247,NULL,NULL,'None','/nowhere/mlruns/model','f2ad9a9cb60243bcab40fbb9607b3b19','READY',NULL,NULL,'/nowhere/mlruns/model');
CREATE TABLE "params" ( "key" VARCHAR(250) NOT NULL,  value VARCHAR(8000) NOT NULL,  run_uuid VARCHAR(32) NOT NULL,  CONSTRAINT param_pk PRIMARY KEY ("key", run_uuid),  FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid)
);
INSERT INTO "params" VALUES('lr','0.1','f2ad9a9cb60243bcab40fbb9607b3b19');
CREATE TABLE registered_model_aliases ( alias VARCHAR(256) NOT NULL,  version INTEGER NOT NULL,  name VARCHAR(256) NOT NULL,  CONSTRAINT registered_model_alias_pk PRIMARY KEY (name, alias),  CONSTRAINT registered_model_alias_name_fkey FOREIGN KEY(name) REFERENCES registered_models (name) ON DELETE cascade ON UPDATE cascade
);
INSERT INTO "registered_model_aliases" VALUES('champion',1,'prod');
INSERT INTO "registered_model_aliases" VALUES('shadow',2,'prod');
CREATE TABLE registered_model_tags ( "key" VARCHAR(250) NOT NULL,  value VARCHAR(5000),  name VARCHAR(256) NOT NULL,  CONSTRAINT registered_model_tag_pk PRIMARY KEY ("key", name),  FOREIGN KEY(name) REFERENCES registered_models (name) ON UPDATE cascade
);
CREATE TABLE registered_models ( name VARCHAR(256) NOT NULL,  creation_time BIGINT,  last_updated_time BIGINT,  description VARCHAR(5000),  CONSTRAINT registered_model_pk PRIMARY KEY (name),  UNIQUE (name)
);
INSERT INTO "registered_models" VALUES('prod',1795478313164,1795478313247,NULL);
CREATE TABLE "runs" ( run_uuid VARCHAR(32) NOT NULL,  name VARCHAR(250),  source_type VARCHAR(20),  source_name VARCHAR(500),  entry_point_name VARCHAR(50),  user_id VARCHAR(256),  status VARCHAR(9),  start_time BIGINT,  end_time BIGINT,  source_version VARCHAR(50),  lifecycle_stage VARCHAR(20),  artifact_uri VARCHAR(200),  experiment_id INTEGER, deleted_time BIGINT,  CONSTRAINT run_pk PRIMARY KEY (run_uuid),  CONSTRAINT runs_lifecycle_stage CHECK (lifecycle_stage IN ('active', 'deleted')),  CONSTRAINT source_type CHECK (source_type IN ('NOTEBOOK', 'JOB', 'LOCAL', 'UNKNOWN', 'PROJECT')),  FOREIGN KEY(experiment_id) REFERENCES experiments (experiment_id),  CHECK (status IN ('SCHEDULED', 'FAILED', 'FINISHED', 'RUNNING', 'KILLED'))
);
INSERT INTO "runs" VALUES('f2ad9a9cb60243bcab40fbb9607b3b19','luminous-bear-590','UNKNOWN','','','unknown','FINISHED',1795478312987,1795478313131,'','active','/nowhere/mlruns/f2ad9a9cb60243bcab40fbb9607b3b19/artifacts',1,NULL);
CREATE TABLE "tags" ( "key" VARCHAR(250) NOT NULL,  value VARCHAR(8000),  run_uuid VARCHAR(32) NOT NULL,  CONSTRAINT tag_pk PRIMARY KEY ("key", run_uuid),  FOREIGN KEY(run_uuid) REFERENCES runs (run_uuid)
);
INSERT INTO "tags" VALUES('mlflow.runName','luminous-bear-590','f2ad9a9cb60243bcab40fbb9607b3b19');
CREATE TABLE trace_info ( request_id VARCHAR(50) NOT NULL,  experiment_id INTEGER NOT NULL,  timestamp_ms BIGINT NOT NULL,  execution_time_ms BIGINT,  status VARCHAR(50) NOT NULL,  CONSTRAINT trace_info_pk PRIMARY KEY (request_id),  CONSTRAINT fk_trace_info_experiment_id FOREIGN KEY(experiment_id) REFERENCES experiments (experiment_id)
);
CREATE TABLE "trace_request_metadata" ( "key" VARCHAR(250) NOT NULL,  value VARCHAR(8000),  request_id VARCHAR(50) NOT NULL,  CONSTRAINT trace_request_metadata_pk PRIMARY KEY ("key", request_id),  CONSTRAINT fk_trace_request_metadata_request_id FOREIGN KEY(request_id) REFERENCES trace_info (request_id) ON DELETE CASCADE
);
CREATE TABLE "trace_tags" ( "key" VARCHAR(250) NOT NULL,  value VARCHAR(8000),  request_id VARCHAR(50) NOT NULL,  CONSTRAINT trace_tag_pk PRIMARY KEY ("key", request_id),  CONSTRAINT fk_trace_tags_request_id FOREIGN KEY(request_id) REFERENCES trace_info (request_id) ON DELETE CASCADE
);
CREATE INDEX index_metrics_run_uuid ON metrics (run_uuid);
CREATE INDEX index_latest_metrics_run_uuid ON latest_metrics (run_uuid);
CREATE INDEX index_inputs_destination_type_destination_id_source_type ON inputs (destination_type, destination_id, source_type);
CREATE INDEX index_inputs_input_uuid ON inputs (input_uuid);
CREATE INDEX index_params_run_uuid ON params (run_uuid);
CREATE INDEX index_trace_info_experiment_id_timestamp_ms ON trace_info (experiment_id, timestamp_ms);
CREATE INDEX index_trace_tags_request_id ON trace_tags (request_id);
CREATE INDEX index_trace_request_metadata_request_id ON trace_request_metadata (request_id);
CREATE INDEX index_tags_run_uuid ON tags (run_uuid);
CREATE INDEX index_datasets_experiment_id_dataset_source_type ON datasets (experiment_id, dataset_source_type);
CREATE INDEX index_datasets_dataset_uuid ON datasets (dataset_uuid);
COMMIT;
