"""OpenWebText, rebuilt: from Reddit submissions to token shards, with one task per stage.

`collect` → `fetch` → `extract` → `clean` → `dedupe` → `export` → `tokenize` → `report` → `verify` →
`publish`, `train`

Each stage runs as `PYTHON -m owt_pipeline run RUN --until STAGE` with the flags of the parameters
below. All other options are in the TOML file `settings`, by default that of the run, which every
worker has to be able to read; parameters override it.

**The interpreter** has to be that of an environment with `owt-pipeline`, not Airflow's own, because
their pinned packages conflict. The Airflow variable `owt_python` names it (`airflow variables set
owt_python /opt/owt/.venv/bin/python`, or `AIRFLOW_VAR_OWT_PYTHON` in the environment). A run's
parameters cannot choose it.

**Triggering again is cheap.** Finished stages are skipped, and an interrupted stage continues at
the shard where it stopped. So trigger a failed run again with the same folder; retries lose
nothing. After a changed parameter, its stage and the later ones run again.

**One DAG run per folder.** Those of different folders run at the same time. A second one of the
same folder is refused, and Airflow retries its task.

**Assets.** `export`, `tokenize` and `report` update the assets `owt_corpus`, `owt_tokens` and
`owt_report`, with the run's folder as extra (`run`); schedule other DAGs on them.

**Runners.** `FnApiRunner` runs on the worker itself, with `workers` processes. For any other
runner, `run` is a bucket that all its machines can reach, and `beam_flags` has Beam's flags, such
as `{"project": "p", "region": "europe-west1", "temp_location": "gs://b/tmp"}`. On Dataflow, the
task submits the job and is deferred; each minute it takes a worker for a few seconds to ask whether
the job has ended.

**After the report,** `verify` checks every count and checksum. `publish` sends the corpus to the
Hugging Face Hub if the parameter names a dataset, and `train` trains a GPT-2 if `model` names a
folder; otherwise they are skipped.

This DAG has no schedule: `openwebtext_monthly.py` triggers it for each month's dump.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import DAG, Asset, BaseOperator, Param, Variable, chain
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

STAGES = ("collect", "fetch", "extract", "clean", "dedupe", "export", "tokenize", "report")
"""The stages in order."""

FLAGS = ("dumps", "links", "add", "pages_from", "num_shards", "min_tokens", "workers")
"""The parameters that are flags of `owt run`."""

ASSETS = {
    "export": Asset("owt_corpus"),
    "tokenize": Asset("owt_tokens"),
    "report": Asset("owt_report"),
}
"""The asset that a stage updates."""

RUNNING = 4
"""Exit code of a stage whose job on Dataflow is running."""

RUNNERS = ("FnApiRunner", "DataflowRunner", "FlinkRunner", "SparkRunner", "PortableRunner")


def params() -> dict[str, Param]:
    """The parameters of a run; for an empty one, the flag is left out."""

    def files(description: str) -> Param:
        return Param([], type="array", items={"type": "string"}, description=description)

    def number(minimum: int, description: str) -> Param:
        return Param(None, type=["null", "integer"], minimum=minimum, description=description)

    return {
        "run": Param(
            type="string",
            minLength=1,
            description="folder of the run: a local path, gs:// or s3://",
        ),
        "dumps": files("Reddit submission dumps: .zst, .xz, .bz2, .gz or plain; globs are allowed"),
        "links": files("tables of links, or lists of URLs, one per line"),
        "add": Param(
            False, type="boolean", description="add the sources that the run does not have yet"
        ),
        "pages_from": files("WARC files to take pages from, instead of the web"),
        "num_shards": number(1, "shards of what is added"),
        "min_tokens": number(0, "documents with fewer tokens are rejected"),
        "workers": number(1, "processes for CPU-bound work; empty: all cores"),
        "settings": Param(
            None, type=["null", "string"], pattern=r"\.toml$", description="settings in TOML"
        ),
        "runner": Param(RUNNERS[0], type="string", enum=list(RUNNERS), description="Beam's runner"),
        "beam_flags": Param({}, type="object", description="further flags of Beam, by name"),
        "verify": Param(
            True,
            type="boolean",
            description="read and check every byte before publishing or training",
        ),
        "publish": Param(
            "",
            type="string",
            pattern=r"^(hf://[^/\s]+/[^/\s]+)?$",
            description="dataset to publish: hf://OWNER/NAME",
        ),
        "urls_only": Param(
            False, type="boolean", description="publish the list of URLs without the texts"
        ),
        "model": Param(
            None, type=["null", "string"], description="folder of the model to train on the tokens"
        ),
        "train_flags": Param(
            {}, type="object", description='flags of trainer.train, by name: {"preset": "tiny"}'
        ),
    }


def flags(given: dict[str, Any]) -> list[str]:
    """Command-line flags: one per item of a list, and none for None, False and empty lists."""
    found: list[str] = []
    for name, value in given.items():
        for item in value if isinstance(value, list) else [value]:
            if item is True:
                found.append(f"--{name}")
            elif item is not None and item is not False:
                found.append(f"--{name}={item}")
    return found


class RunProgram(BaseOperator):
    """Runs `PYTHON -m ARGUMENTS`; if it leaves a job running on Dataflow, runs it again until
    the job has ended.

    Args:
      arguments: function from the parameters to the arguments; None to skip the task.
    """

    look_every = timedelta(minutes=1)

    def __init__(
        self, *, arguments: Callable[[dict[str, Any]], list[str] | None], **given: Any
    ) -> None:
        super().__init__(**given)
        self.arguments = arguments
        self.hook = SubprocessHook()

    def execute(self, context: Any, event: Any = None) -> None:
        params = context["params"]
        arguments = self.arguments(params)
        if arguments is None:
            raise AirflowSkipException("the run's parameters do not ask for it")
        done = self.hook.run_command(
            [Variable.get("owt_python", default="python3"), "-m", *arguments]
        )
        if done.exit_code == RUNNING:
            self.defer(trigger=TimeDeltaTrigger(self.look_every), method_name="execute")
        if done.exit_code:
            raise AirflowException(
                f"{' '.join(arguments[:2])} ended with exit code {done.exit_code}: {done.output}"
            )
        for asset in self.outlets:
            context["outlet_events"][asset].extra = {"run": params["run"]}

    def on_kill(self) -> None:
        self.hook.send_sigterm()


def run_stage(stage: str, params: dict[str, Any]) -> list[str]:
    """On Dataflow the program ends once the job is submitted, and reports the job's outcome when
    it is run again."""
    runner = params["runner"]
    detached = {"no_wait_until_finish": True} if runner == "DataflowRunner" else {}
    given = {name: params[name] for name in FLAGS}
    words = [params["run"], *filter(None, [params["settings"]]), "--until", stage]
    return [
        "owt_pipeline",
        "run",
        *words,
        *flags({"runner": runner, **params["beam_flags"], **detached, **given}),
    ]


def verify(params: dict[str, Any]) -> list[str] | None:
    return ["owt_pipeline", "verify", params["run"]] if params["verify"] else None


def publish(params: dict[str, Any]) -> list[str] | None:
    withheld = ["--urls_only"] if params["urls_only"] else []
    command = ["owt_pipeline", "publish", params["run"], params["publish"], "--yes", *withheld]
    return command if params["publish"] else None


def train(params: dict[str, Any]) -> list[str] | None:
    tokens = f"{params['run'].rstrip('/')}/tokens"
    given = flags({"data": tokens, "out": params["model"], **params["train_flags"]})
    return ["trainer.train", *given] if params["model"] else None


with DAG(
    dag_id="openwebtext",
    description="Rebuild OpenWebText from Reddit submissions",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    params=params(),
    default_args={
        "retries": 2,
        "retry_delay": timedelta(minutes=1),
        "retry_exponential_backoff": True,
    },
    tags=["openwebtext", "beam"],
) as dag:
    stages = [
        RunProgram(
            task_id=stage,
            arguments=partial(run_stage, stage),
            outlets=[ASSETS[stage]] if stage in ASSETS else [],
        )
        for stage in STAGES
    ]
    after = [
        RunProgram(task_id=program.__name__, arguments=program, trigger_rule="none_failed")
        for program in (verify, publish, train)
    ]
    chain(*stages, after[0], after[1:])
