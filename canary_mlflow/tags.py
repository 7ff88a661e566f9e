"""The names of our tags in MLflow: who writes each → who reads it. Those that end in a dot begin the names of many."""

OURS = "canary."  # all of ours; on models and versions only the guard writes such tags

# Of every run, session or sweep.
ROLE = "canary.role"  # who starts it: run, session, sweep, baseline, profile, revisions, evals → all that look for runs
LEASE = "canary.lease"  # the process that holds it open → the next session, which closes what dead processes left
HEARTBEAT = "canary.heartbeat"  # the same, every two minutes: seconds since the epoch → the next session

# Of runs and sessions of `canary run`: the parts of the configuration.
ALGO = "canary.algo"  # `canary run`, callback, import → pages, reports
MODEL = "canary.model"  # `canary run` → pages, reports
TIER = "canary.tier"  # `canary run`, a session of your own → policies, pages, reports
ADAPTER = "canary.adapter"  # `canary run` → report of memory
QUANTIZATION = "canary.quantization"  # `canary run` → report of memory
FAULT = "canary.fault"  # `canary run` → pages, people
MODEL_NAME = "canary.model_name"  # session, cell of a sweep, judge → all that look for the registered model

# Of a run: what it is.
SEED = "canary.seed"  # who starts it → judge, pages, reports
MAX_STEPS = "canary.max_steps"  # callback: optimizer steps; a workload may count iterations → pages
WORKLOAD = "canary.workload."  # callback, import → judge, pages: the same work?
HARDWARE = "canary.hardware."  # callback, import → judge, report of memory: the same kind of machine?
ENV = "canary.env."  # callback, import → judge, reports, rows of sessions
FACTS = "canary.facts."  # probes: one JSON object per group → judge, reports
DATA = "canary.data."  # `canary run`: rows dropped and cut, which are facts too → judge
NOTE = "canary.note"  # `canary run`: what to know about its inputs and device → pages, reports
NOT_PROMOTABLE = "canary.not_promotable"  # people, `canary run`, judge: why it is no standard → judge, prune
BASELINE_OF = "canary.baseline_of"  # who repeats a champion's code: its version → judge without a ledger, people
PROFILE_OF = "canary.profile_of"  # `profile=true`: the session or run that it repeated → prune, reports
PROFILED = "canary.profiled"  # a session with `profile=true`: its artifacts hold a profile → reports
MODEL_SOURCE = "canary.model_source"  # people: where the files that it made are, if it logged none → guard
CLUSTER_NODE = "canary.cluster.node"  # the node of a cluster that made it → later runs of the same pair
CLUSTER_UNIT = "canary.cluster.unit"  # the unit of work that made it → who waits for the unit
CELL = "canary.cell"  # sweep: a key for runs of one configuration → sweep
CELL_NAME = "canary.cell_name"  # sweep: in what its cell differs from the others → names of runs, pages
IMPORT_DIGEST = "canary.import.digest"  # import: SHA-256 of the file → the next import
IMPORT_FILE = "canary.import.file"  # import → people
IMPORT_KIND = "canary.import.kind"  # import → people
IMPORT_NOTES = "canary.import.notes"  # import → people

# Of a run: how it went.
COMPLETED = "canary.completed"  # callback, import, who closes it: trained to its last step? → judge, pages, reports
LAST_STEP = "canary.last_step"  # callback, import → judge
FAILURE = "canary.failure"  # callback, import, who closes it → judge, pages, sweep
FAILURE_REASON = "canary.failure_reason"  # the same → the same
EXCEPTION = "canary.exception"  # callback, worker: its type → judge
EXCEPTION_PLACE = "canary.exception.place"  # the same: the place that raised it → judge
EXCEPTION_OUTSIDE = "canary.exception.outside"  # the same: why it tells nothing about the code → judge
NAN_STEPS = "canary.nan_steps"  # callback, import → judge
INF_STEPS = "canary.inf_steps"  # callback, import → judge
FINITE = "canary.finite"  # callback, import → people, to filter by
FIRST_NONFINITE = "canary.first_nonfinite"  # probe of gradients: the first tensor, with its step → people
PARAMETERS_FINITE = "canary.parameters_finite"  # callback → people
LEARNED = "canary.learned"  # callback, import → judge
LEARNED_REASON = "canary.learned_reason"  # callback, import → judge
INVARIANTS = "canary.invariants"  # probe of invariants → judge
INVARIANTS_CHECKED = "canary.invariants_checked"  # probe of invariants → people
TROUBLES = "canary.troubles"  # callback: probes that were switched off, and why → people
ROWS_LOST = "canary.rows_lost"  # callback: rows of metrics not delivered; its last tag → rows of sessions, worker
WATCH_POLICY = "canary.watch.policy"  # watch → pages
WATCH_LEVEL = "canary.watch.level"  # watch: healthy, warned, critical, stopped → pages, reports, `canary watch`
WATCH_WARNINGS = "canary.watch.warnings"  # watch: their number → pages, reports
WATCH_FIRST = "canary.watch.first"  # watch: the first warning, in brief → people
WATCH_FOUND = "canary.watch.found"  # watch: the worst warnings, as JSON → pages, reports
WATCH_CRITICAL_HELD = "canary.watch.critical_held"  # watch, import: what reached STOP first, in words → judge
WATCH_LEAD_STEPS = "canary.watch.lead_steps"  # watch: steps from the first warning to the end → people
WATCH_STEPS_SAVED = "canary.watch.steps_saved"  # watch: steps that stopping it saved → people

# Of a run: what nobody filters by, several values in one tag as JSON (tracking/describing/compact.py).
MORE = "canary.more."  # about, settings, found, late, watch, work, variants, end → all that read the tags below
WATCHED = f"{MORE}watch"
# These two only grow: what runs have recorded must read the same for ever.
TOLD = frozenset({NOTE, LAST_STEP, NAN_STEPS, INF_STEPS, FIRST_NONFINITE, PARAMETERS_FINITE, LEARNED, LEARNED_REASON,
                  INVARIANTS, INVARIANTS_CHECKED, TROUBLES})  # fmt: skip
TOLD_OF = (WORKLOAD, HARDWARE, ENV, FACTS, DATA, "canary.watch.", "canary.import.")  # all that begins so, but for:
IN_FULL = frozenset({f"{HARDWARE}device", f"{ENV}torch", WATCH_LEVEL, IMPORT_DIGEST})

# Of a session, a comparison of revisions or a sweep.
SEEDS = "canary.seeds"  # session: the seeds that it planned → rows of sessions
LOOKS = "canary.looks"  # judge, by champion: `4: 1.9f86d081 3.60303ae2; …`, runs and evidence of each look → judge
VERSION = "canary.version"  # judge: the version that it left → pages
SIDE = "canary.side"  # `canary ab`: which side of the comparison → `canary ab --continue`
OVERRIDES = "canary.overrides"  # `canary ab`: of both sides → `canary ab --continue`
SWEPT = "canary.swept"  # sweep: the keys in which its cells differ → its jobs on a cluster
CI_JOB = "canary.ci.job"  # who starts it in CI → `canary ci`
CI_URL = "canary.ci.url"  # who starts it in CI → people

# Of a version, and of its session the first two; a registry without a ledger has no other record of the rest.
VERDICT = "canary.verdict"  # judge, acts by hand, sweep → guard, audit, prune, pages, CI
VERDICT_REASON = "canary.verdict_reason"  # the same → acts by hand, pages
BASELINE_VERSION = "canary.baseline_version"  # judge, acts by hand: the champion until then → prune
POLICY = "canary.policy"  # judge → people
SESSION_ID = "canary.session_id"  # who registers it: the session that is its evidence → judge, guard, prune, pages
SEAL = "canary.seal"  # guard: the digest of all its files → guard
WEIGHTS = "canary.weights"  # guard: files or none → judge, guard
WEIGHTS_CHECKED = "canary.weights_checked"  # guard: how its weights were loaded and compared → judge
EVALS = "canary.evals"  # `canary evals add`: the runs of its evaluations → judge without a ledger, people
EVALUATES = "canary.evaluates"  # of such a run: model/version → who signs it, people
FACTS_ACCEPTED = "canary.facts_accepted"  # `canary accept`: why; also with _by and _at → audit
PRUNED = "canary.pruned"  # `canary prune`: when its files were given up → whatever would promote it
PRUNED_BY = "canary.pruned_by"  # `canary prune` → the same

# MLflow's own.
PARENT_RUN = "mlflow.parentRunId"  # who starts a run of a session → all that read sessions
RUN_NAME = "mlflow.runName"  # who starts it → pages, reports
DESCRIPTION = "mlflow.note.content"  # judge, sweep: the report → MLflow's UI
GIT_COMMIT = "mlflow.source.git.commit"  # MLflow → rows of sessions
ENTRY_POINT = "mlflow.project.entryPoint"  # MLflow Projects → readers of a run's configuration


def quoted(name: str) -> str:
    """A name quoted for MLflow's filters, which know both kinds of quotes but no escape."""
    mark = '"' if "'" in name else "'"
    return f"{mark}{name}{mark}"


def where(tag: str, value: str) -> str:
    """MLflow's filter for what has this value of a tag."""
    return f"tags.`{tag}` = {quoted(value)}"
